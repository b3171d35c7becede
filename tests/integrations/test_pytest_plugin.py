"""The fixture `grn_gpu` in sessions of pytest of their own, also with several workers."""

from __future__ import annotations

import re
import sys

import pytest

from tests.conftest import Negotiators
from tests.harness import Ended, Job, Story, wait_for
from tests.integrations.pages import blocks

FAIL = 1


# Without all that is installed a session starts in a fraction of the time.
ALONE = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": "1", "PYTEST_PLUGINS": "grn.integrations.pytest_plugin"}
AS_INSTALLED = {"PYTEST_DISABLE_PLUGIN_AUTOLOAD": None, "PYTEST_PLUGINS": None}


def start(story: Story, text: str, *arguments: str, **env: str | None) -> Job:
    story.write("test_it.py", text)
    story.write("pytest.ini", "[pytest]\n")
    words = ("-p", "no:cacheprovider", "-rs", "-q", *arguments, "test_it.py")
    own = {"PYTEST_ADDOPTS": None, **ALONE, **env}
    return story.start(sys.executable, "-m", "pytest", *words, env=own)


def run(story: Story, text: str, *arguments: str, **env: str | None) -> Ended:
    return start(story, text, *arguments, **env).wait()


@pytest.mark.slow
def test_the_example_of_the_page_passes_with_more_workers_than_gpus(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator("virtual:2x512MiB")
    ended = run(story, blocks("integrations/pytest.md", "python")[0], "-n", "3", **AS_INSTALLED)
    assert "6 passed" in ended.out, ended
    labels = {profile["label"] for profile in here.profiles()}
    assert labels == {
        f"test_it.py::{name}" for name in ("test_a_model_fits", "test_a_step", "test_two_of_them")
    }
    assert here.leases() == []


def test_workers_share_gpus_and_never_more_than_fit(story: Story, negotiator: Negotiators) -> None:
    """Three workers, two GPUs, tests that leave no room for a second: two run, one waits."""
    here = negotiator("virtual:2x512MiB")
    story.gate("go")
    job = start(story, """
        import os
        import pytest
        from act import gate, say

        @pytest.mark.grn_gpu(mem="300MiB")
        @pytest.mark.parametrize("number", range(3))
        def test_it(number):
            say("runs on", os.environ["CUDA_VISIBLE_DEVICES"], os.getpid())
            gate("go")
    """, "-p", "xdist", "-n", "3")  # fmt: skip
    (waiting,) = here.wait_for_waiting(1)
    assert waiting["label"] == "test_it.py::test_it"
    wait_for(lambda: len(story.said()) == 2)
    assert {line.split()[2] for line in story.said()} == {"0", "1"}
    assert {int(line.split()[3]) for line in story.said()} == {one["pid"] for one in here.leases()}
    story.gate("go").open()
    assert "3 passed" in job.ended_well().out
    here.wait_for_leases(0)


def test_a_lease_lasts_as_long_as_its_test_and_hears_how_it_went(
    story: Story, negotiator: Negotiators
) -> None:
    here = negotiator()
    ended = run(story, """
        import os
        import pytest

        @pytest.fixture
        def model(grn_gpu):
            yield os.environ["GRN_LEASE"]
            assert os.environ["GRN_LEASE"]  # still held while this is torn down

        pytestmark = pytest.mark.grn_gpu(mem="64MiB")

        def test_passes(model):
            assert model

        def test_fails(grn_gpu):
            raise ValueError

        def test_gives_up(grn_gpu):
            pytest.skip("not today")

        @pytest.mark.grn_gpu(type="mine")
        class TestNamed:
            def test_one(self, grn_gpu):
                assert grn_gpu.gpus
    """)  # fmt: skip
    assert "1 failed, 2 passed, 1 skipped" in ended.out, ended
    ends = {one["label"]: one["history"][0]["outcome"] for one in here.profiles()}
    assert ends == {
        "test_it.py::test_passes": "ok",
        "test_it.py::test_fails": "failed",
        "test_it.py::test_gives_up": "ok",
        "mine": "ok",
    }
    assert here.leases() == []


WANTS_ONE = """
    def test_wants_one(grn_gpu):
        pass

    def test_wants_another(grn_gpu):
        pass

    def test_wants_none():
        pass
"""


def test_without_a_negotiator_tests_are_skipped_with_the_reason(story: Story) -> None:
    ended = run(story, WANTS_ONE, GRN_GPUS="nvml")
    assert "1 passed, 2 skipped" in ended.out, ended
    assert "no GPU negotiator runs, and none can be started: the negotiator did not" in ended.out
    ended = run(story, WANTS_ONE, "--grn-required", GRN_GPUS="nvml")
    assert ended.code == FAIL
    assert "1 passed, 2 errors" in ended.out, ended


def test_a_test_that_no_gpu_can_hold_is_skipped(story: Story, negotiator: Negotiators) -> None:
    negotiator()
    text = """
        import pytest

        @pytest.mark.grn_gpu(mem="64GiB")
        def test_it():
            pass
    """
    assert re.search(r"SKIPPED.*no GPU for this test: you asked for 64.0 GiB", run(story, text).out)
    assert run(story, text, "--grn-required").code == FAIL


def test_a_wrong_mark_is_an_error_that_says_what_is_wrong(
    story: Story, negotiator: Negotiators
) -> None:
    negotiator()
    ended = run(story, """
        import pytest

        @pytest.mark.grn_gpu("2GiB")
        def test_without_a_name():
            pass

        @pytest.mark.grn_gpu(memory="2GiB")
        def test_unknown():
            pass

        @pytest.mark.grn_gpu(mem="a lot")
        def test_no_size():
            pass

        @pytest.mark.grn_gpu(gpus=-1)
        def test_none():
            pass
    """)  # fmt: skip
    assert "4 errors" in ended.out, ended
    for said in ("with names", "grn_gpu knows no memory", "a lot", "gpus is -1"):
        assert said in ended.out


def test_a_session_that_wants_no_gpu_loads_no_part_of_grn(story: Story) -> None:
    ended = run(story, """
        import sys

        def test_it():
            assert [name for name in sys.modules if name.startswith("grn.")] == [
                "grn.integrations", "grn.integrations.pytest_plugin"]
    """, "--strict-markers")  # fmt: skip
    assert "1 passed" in ended.out, ended


def test_it_can_be_switched_off(story: Story) -> None:
    ended = run(story, WANTS_ONE, "-p", "no:grn", **AS_INSTALLED)
    assert "1 passed, 2 errors" in ended.out
