# `make demo` and `make test` are all a newcomer needs; both build .venv first.
PYTHON ?= python3
ARGS ?=

.PHONY: help demo test test-unit test-engines test-versions check-fast format bench bench-packing soak bootstrap clean faults mnist docs pictures

help:
	@echo 'make demo         build .venv and run the demo (no GPU needed)'
	@echo 'make test         all checks and tests on this Python version'
	@echo 'make test-unit    only the tests that start no process: a minute or less'
	@echo 'make test-engines  sites on a real Slurm and a real Ray, which are installed'
	@echo 'make test-versions  the core tests on the other Python versions found'
	@echo 'make check-fast   formatting, lint and types only'
	@echo 'make format       rewrite the code as the formatter wants it'
	@echo 'make faults       only the fault campaigns of the queue: kills, full disks, power cuts'
	@echo 'make mnist        examples/mnist: PyTorch, TensorFlow and JAX under doit, on virtual GPUs'
	@echo 'make docs         the pages as a site, in site/'
	@echo 'make pictures     draw the pictures of README and docs by the real programs'
	@echo 'make bench        the benchmarks'
	@echo 'make bench-packing  packing by replay, policies side by side (ARGS=PATH: traces too)'
	@echo 'make soak         the campaigns in their long form, an hour or more (ARGS=--only WORD)'
	@echo 'make clean        remove the environments and caches'

bootstrap:
	@$(PYTHON) tools/bootstrap.py

demo:
	@$(PYTHON) tools/bootstrap.py --no-test
	@.venv/bin/grn demo $(ARGS)

test: bootstrap
	@.venv/bin/python tools/check.py $(ARGS)

test-unit: bootstrap
	@.venv/bin/python tools/check.py --unit $(ARGS)

test-engines: bootstrap
	@.venv/bin/python tools/check.py --engines $(ARGS)

test-versions: bootstrap
	@.venv/bin/python tools/check.py --versions $(ARGS)

check-fast: bootstrap
	@.venv/bin/python tools/check.py --no-tests

format: bootstrap
	@.venv/bin/python -m ruff format
	@.venv/bin/python -m ruff check --fix

faults: bootstrap
	@.venv/bin/python -m pytest tests/queue_faults -n 2 $(ARGS)

# In an environment of its own, .venv-mnist, of some 3 GB; CPU builds are enough.
mnist:
	@$(PYTHON) tools/mnist.py $(ARGS)

docs: bootstrap
	@NO_MKDOCS_2_WARNING=1 .venv/bin/python -m mkdocs build --strict -q -f tools/mkdocs.yml
	@echo 'open site/index.html'

pictures: bootstrap
	@.venv/bin/python tools/pictures.py

bench: bootstrap
	@.venv/bin/python benchmarks/run.py $(ARGS)

bench-packing: bootstrap
	@.venv/bin/python benchmarks/packing.py $(ARGS)

soak: bootstrap
	@.venv/bin/python tools/soak.py $(ARGS)

clean:
	rm -rf .venv .venv-3.* .venv-mnist* .venv-examples* .venv.lock dist build site
	rm -rf .pytest_cache .mypy_cache .ruff_cache .hypothesis
	find src tests tools benchmarks examples -name __pycache__ -prune -exec rm -rf {} + 2>/dev/null || true
