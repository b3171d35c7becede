"""What frameworks say of their memory, asked of small fakes of them."""

from __future__ import annotations

import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from grn.client.leasing import frameworks

GiB, MiB = 1 << 30, 1 << 20


class OutOfMemoryError(RuntimeError):
    """As torch's, by name."""


class ResourceExhaustedError(Exception):
    """As TensorFlow's, by name."""


def a_torch(peaks: tuple[int, ...] = (), *, is_initialized: bool = True) -> SimpleNamespace:
    cuda = SimpleNamespace(
        is_initialized=lambda: is_initialized,
        device_count=lambda: len(peaks),
        max_memory_reserved=lambda index: peaks[index],
        empty_cache=lambda: None,
    )
    return SimpleNamespace(cuda=cuda)


def a_jax(monkeypatch: pytest.MonkeyPatch, *, is_up: bool, platform: str = "gpu") -> None:
    device = SimpleNamespace(platform=platform, memory_stats=lambda: {"peak_bytes_in_use": 3 * MiB})
    bridge = SimpleNamespace(_backends={"cuda": 1} if is_up else {})
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace(local_devices=lambda: [device]))
    monkeypatch.setitem(sys.modules, "jax._src.xla_bridge", bridge)


@pytest.mark.parametrize(
    "error",
    [
        OutOfMemoryError("anything"),
        ResourceExhaustedError("anything"),
        RuntimeError("CUDA out of memory. Tried to allocate 2.00 GiB"),
        RuntimeError("CUDA error: out of memory"),
        RuntimeError("cuBLAS: CUBLAS_STATUS_ALLOC_FAILED when calling"),
        ValueError("RESOURCE_EXHAUSTED: Out of memory while trying to allocate 1048576 bytes."),
    ],
)
def test_out_of_memory_is_known_by_name_or_text(error: BaseException) -> None:
    assert frameworks.is_out_of_memory(error)


@pytest.mark.parametrize("error", [MemoryError("CUDA out of memory"), ValueError("no"), OSError()])
def test_other_errors_are_not_out_of_memory(error: BaseException) -> None:
    assert not frameworks.is_out_of_memory(error)


def test_out_of_memory_is_found_behind_another_error() -> None:
    outer = ValueError("training failed")
    outer.__cause__ = OutOfMemoryError("Tried to allocate 1.50 GiB")
    loop = ValueError("around")
    loop.__cause__ = loop

    assert frameworks.is_out_of_memory(outer)
    assert frameworks.asked_bytes_of(outer) == 3 * GiB // 2
    assert not frameworks.is_out_of_memory(loop)


@pytest.mark.parametrize(
    ("text", "asked"),
    [
        ("Tried to allocate 20.00 MiB. GPU 0", 20 * MiB),
        ("while trying to allocate 1,048,576 bytes.", MiB),
        ("Failed to allocate 2 GB", 2 * GiB),
        ("CUDA out of memory.", None),
        ("Tried to allocate 0.00 MiB", None),
        ("Tried to allocate ... MiB", None),
    ],
)
def test_the_size_that_failed_is_read_where_it_is_told(text: str, asked: int | None) -> None:
    assert frameworks.asked_bytes(text) == asked


def test_nothing_is_asked_where_nothing_is_loaded() -> None:
    assert frameworks.peak_bytes() is None
    assert not frameworks.has_touched_gpu()
    frameworks.free_caches()


def test_the_largest_peak_on_one_gpu_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", a_torch((MiB, 2 * MiB)))
    assert frameworks.peak_bytes() == 2 * MiB
    assert frameworks.has_touched_gpu()

    a_jax(monkeypatch, is_up=True)
    assert frameworks.peak_bytes() == 3 * MiB


def test_a_peak_is_reported_to_the_queue_when_it_has_grown(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "peak"
    monkeypatch.setitem(sys.modules, "torch", a_torch((MiB, 2 * MiB)))
    assert frameworks.report_peak(0) == 0, "this is not a job of the queue"
    monkeypatch.setenv(frameworks.PEAK_FILE, str(file))
    assert frameworks.report_peak(0) == 2 * MiB
    assert frameworks.report_peak(2 * MiB) == 2 * MiB
    assert file.read_text() == f"{2 * MiB}\n"
    monkeypatch.setenv(frameworks.PEAK_FILE, str(tmp_path / "no" / "folder"))
    assert frameworks.report_peak(0) == 0


def test_a_framework_that_has_not_touched_the_gpu_is_not_asked(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "torch", a_torch((MiB,), is_initialized=False))
    a_jax(monkeypatch, is_up=False)

    assert frameworks.peak_bytes() is None
    assert not frameworks.has_touched_gpu()


def test_jax_on_the_processor_is_no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    a_jax(monkeypatch, is_up=True, platform="cpu")

    assert frameworks.peak_bytes() is None
    assert not frameworks.has_touched_gpu()


def test_tensorflow_tells_its_peak(monkeypatch: pytest.MonkeyPatch) -> None:
    context = SimpleNamespace(_initialized=True, num_gpus=lambda: 1)
    memory = SimpleNamespace(get_memory_info=lambda name: {"peak": 5 * MiB})
    config = SimpleNamespace(
        experimental=memory, list_logical_devices=lambda kind: [SimpleNamespace(name="GPU:0")]
    )
    monkeypatch.setitem(sys.modules, "tensorflow", SimpleNamespace(config=config))
    monkeypatch.setitem(
        sys.modules, "tensorflow.python.eager.context", SimpleNamespace(context=lambda: context)
    )
    assert frameworks.peak_bytes() == 5 * MiB
    assert frameworks.has_touched_gpu()


def test_a_framework_that_raises_is_passed_over(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken() -> Any:
        raise RuntimeError("half imported")

    monkeypatch.setitem(
        sys.modules, "torch", SimpleNamespace(cuda=SimpleNamespace(is_initialized=broken))
    )
    monkeypatch.setitem(sys.modules, "jax", SimpleNamespace())
    assert frameworks.peak_bytes() is None
    assert not frameworks.has_touched_gpu()
    frameworks.free_caches()
