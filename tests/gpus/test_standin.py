"""The fake torch: its memory shows on the stand-in GPUs as that of the real one would."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.gpus.conftest import Machines
from tests.gpus.standin.build import GiB, MiB, StandIn, gpu, mig

A, B = "GPU-aaaa", "GPU-bbbb"
# What nvidia-smi would show, asked through the real nvidia-ml-py in another process.
SHOW = """
import pynvml as n
n.nvmlInit()
for i in range(n.nvmlDeviceGetCount()):
    h = n.nvmlDeviceGetHandleByIndex(i)
    uses = [(p.pid, p.usedGpuMemory) for p in n.nvmlDeviceGetComputeRunningProcesses(h)]
    print(n.nvmlDeviceGetMemoryInfo(h).used, *uses)
"""


def run(machine: StandIn, script: str, **env: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", script],
        env={**os.environ, **machine.env(with_torch=True), **env},
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@contextmanager
def job(machine: StandIn, script: str, **env: str) -> Iterator[subprocess.Popen[str]]:
    """Run a job up to the end of its script, and hold it there."""
    with subprocess.Popen(
        [sys.executable, "-c", script + "\nprint('ready', flush=True)\ninput()"],
        env={**os.environ, **machine.env(with_torch=True), **env},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as started:
        assert started.stdout is not None
        assert started.stdout.readline() == "ready\n"
        yield started
        started.kill()


def shown(machine: StandIn) -> list[str]:
    done = run(machine, SHOW)
    assert done.stderr == ""
    return done.stdout.splitlines()


def test_a_tensor_costs_its_bytes_and_a_context_while_its_process_lives(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), gpu(B, base=MiB))
    script = "import torch; x = torch.randn(1000, device='cuda:0')"
    with job(here, script, GRN_FAKE_TORCH_SCALE=str(GiB / 4000)) as started:
        used = GiB + 300 * MiB
        assert shown(here) == [f"{used} ({started.pid}, {used})", str(MiB)]
        started.kill()
        started.wait()
        assert shown(here) == ["0", str(MiB)]


@pytest.mark.parametrize(
    ("visible", "place"),
    [("1", 1), ("1,0", 1), (B, 1), ("GPU-a", 0), ("0,9", 0)],
)
def test_the_first_visible_gpu_is_the_one_used(machine: Machines, visible: str, place: int) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))
    script = "import torch; x = torch.empty(1, device='cuda', dtype=torch.uint8)"
    with job(here, script, CUDA_VISIBLE_DEVICES=visible):
        assert [line != "0" for line in shown(here)] == [place == 0, place == 1]


@pytest.mark.parametrize("visible", ["", "9", "-1", "0,0", "GPU-x"])
def test_with_no_visible_gpu_cuda_is_not_available(machine: Machines, visible: str) -> None:
    here = machine()
    here.write(gpu(A))
    script = "import torch; print(torch.cuda.is_available()); torch.zeros(1, device='cuda:0')"
    done = run(here, script, CUDA_VISIBLE_DEVICES=visible)

    assert done.stdout == "False\n"
    assert "No CUDA GPUs are available" in done.stderr


def test_visible_gpus_are_read_at_the_first_use_of_cuda_only(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), gpu(B))
    script = """
import os, torch
assert torch.cuda.device_count() == 2 and not torch.cuda.is_initialized()
os.environ["CUDA_VISIBLE_DEVICES"] = "1"
x = torch.ones(1, device="cuda")
os.environ["CUDA_VISIBLE_DEVICES"] = "0"
y = torch.ones(1, device="cuda")
assert torch.cuda.device_count() == 1 and torch.cuda.is_initialized()
"""
    with job(here, script) as started:
        assert shown(here) == ["0", f"{300 * MiB + 8} ({started.pid}, {300 * MiB + 8})"]


def test_the_cache_keeps_memory_until_it_is_emptied(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A))
    done = run(
        here,
        """
import torch
from torch import cuda
assert cuda.max_memory_reserved() == 0 and not cuda.is_initialized()
x = torch.empty(1000, device="cuda", dtype=torch.uint8); del x
print(cuda.memory_allocated(), cuda.memory_reserved(), cuda.max_memory_reserved())
y = torch.empty(400, device="cuda:0", dtype=torch.uint8)
print(cuda.memory_allocated(), cuda.memory_reserved())
cuda.empty_cache()
print(cuda.memory_reserved(), cuda.max_memory_reserved())
cuda.reset_peak_memory_stats()
print(cuda.max_memory_reserved())
""",
    )
    assert done.stdout.splitlines() == ["0 1000 1000", "400 1000", "400 1000", "400"], done.stderr


def test_a_full_gpu_raises_as_torch_does(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A, total=2 * GiB, base=GiB))
    script = "import torch; torch.empty(2**30, dtype=torch.uint8, device='cuda')"
    done = run(here, script)

    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.00 GiB. GPU 0 has a total "
        "capacity of 2.00 GiB of which 724.00 MiB is free."
    )


def test_two_processes_share_what_there_is(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A, total=2 * GiB))
    script = "import torch; x = torch.empty(2**30, dtype=torch.uint8, device='cuda')"
    with job(here, script):
        assert "torch.OutOfMemoryError" in run(here, script).stderr
    assert run(here, script).stderr == ""


def test_a_full_gpu_has_no_room_for_a_context(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A, total=GiB, base=GiB))
    done = run(here, "import torch; torch.randn(1, device='cuda')")

    assert done.stderr.splitlines()[-1] == "RuntimeError: CUDA error: out of memory"


def test_a_fork_cannot_go_on_with_cuda(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A))
    done = run(
        here,
        """
import os, torch
x = torch.randn(1, device="cuda")
if os.fork() == 0:
    try:
        torch.randn(1, device="cuda")
    except RuntimeError as error:
        print(error, flush=True)
    os._exit(0)
os.wait()
""",
    )
    assert done.stdout == "Cannot re-initialize CUDA in forked subprocess.\n", done.stderr


def test_a_slice_is_used_by_its_name(machine: Machines) -> None:
    here = machine()
    here.write(gpu(A), mig(A, 0, "MIG-one", total=GiB), mig(A, 3, "MIG-two", total=GiB))
    script = "import torch; x = torch.ones(1, device='cuda')"
    with job(here, script, CUDA_VISIBLE_DEVICES="MIG-two") as started:
        assert [path.name for path in here.allocations.glob("MIG-*")] == [f"MIG-two.{started.pid}"]
