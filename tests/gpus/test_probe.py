"""CUDA_VISIBLE_DEVICES at the start of the negotiator."""

from __future__ import annotations

import pytest

from grn.errors import BadSetting
from grn.gpus.probe import restrict
from grn.model.gpu import Gpu, GpuKind

GPUS = (
    Gpu("GPU-aaaa1111", 0, "A", 8 << 30),
    Gpu("GPU-aaaa2222", 1, "A", 8 << 30),
    Gpu("GPU-bbbb3333", 3, "B", 8 << 30),
    Gpu("MIG-cccc4444", 4, "C 1g", 1 << 30, GpuKind.MIG),
    Gpu("MIG-cccc5555", 4, "C 1g", 1 << 30, GpuKind.MIG),
)


@pytest.mark.parametrize(
    ("visible", "chosen"),
    [
        (None, [0, 1, 2, 3, 4]),
        ("0", [0]),
        ("3,0", [2, 0]),
        (" 1 , 0 ", [1, 0]),
        ("GPU-bbbb3333", [2]),
        ("GPU-b", [2]),
        ("gpu-AAAA1", [0]),
        ("GPU-aaaa2,GPU-b", [1, 2]),
        ("MIG-cccc5555", [4]),
        ("MIG-cccc5, MIG-cccc4", [4, 3]),
        ("GPU-b,MIG-cccc4444", [2, 3]),
    ],
)
def test_names_and_numbers_choose_gpus_in_the_order_given(
    visible: str | None, chosen: list[int]
) -> None:
    assert restrict(GPUS, visible) == tuple(GPUS[place] for place in chosen)


@pytest.mark.parametrize(
    ("visible", "complaint"),
    [
        ("", "an empty list hides all GPUs"),
        ("  ", "an empty list hides all GPUs"),
        (",", "an empty list hides all GPUs"),
        ("0,,1", "there is an empty entry between commas"),
        ("0,", "there is an empty entry between commas"),
        ("2", "there is no GPU 2"),
        ("-1", "there is no GPU -1"),
        ("99999999999999", "neither a number nor a UUID"),
        ("0,0", "0 names a GPU that is already in the list"),
        ("GPU-b,GPU-bbbb3333", "already in the list"),
        ("GPU-aaaa", "GPU-aaaa is the beginning of 2 UUIDs"),
        ("GPU-dddd", "there is no GPU GPU-dddd"),
        ("NoDevFiles", "NoDevFiles is neither a number nor a UUID"),
        ("²", "neither a number nor a UUID"),
        ("0,GPU-bbbb3333", "numbers and UUIDs must not be mixed"),
        ("4", "GPU 4 is split into MIG slices, name those: MIG-cccc4444, MIG-cccc5555"),
    ],
)
def test_what_names_no_gpu_is_refused_with_the_gpus_there_are(visible: str, complaint: str) -> None:
    with pytest.raises(BadSetting) as refused:
        restrict(GPUS, visible)

    assert complaint in str(refused.value)
    assert "0 (GPU-aaaa1111), 1 (GPU-aaaa2222), 3 (GPU-bbbb3333), MIG-cccc4444" in str(
        refused.value
    )
    assert "\n" not in str(refused.value)


def test_a_hostile_value_is_shown_harmless_and_short() -> None:
    with pytest.raises(BadSetting) as refused:
        restrict(GPUS, "\x1b[31m\n" + "x" * 10_000)

    assert str(refused.value).isprintable()
    assert len(str(refused.value)) < 1000


def test_an_exact_uuid_wins_over_longer_ones_that_begin_with_it() -> None:
    gpus = (Gpu("GPU-1", 0, "A", 1), Gpu("GPU-11", 1, "A", 1))

    assert restrict(gpus, "GPU-1") == gpus[:1]
