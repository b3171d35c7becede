"""Which GPUs `--on` and `--not` leave to a request."""

import pytest

from grn.errors import NeverFits, UsageError
from grn.model.gpu_choice import selected
from grn.model.units import GiB
from tests.builders import a_gpu, a_virtual_gpu

A100 = a_gpu(0, int(39.4 * GiB), model="NVIDIA A100-PCIE-40GB")
H100 = a_gpu(1, int(79.6 * GiB), model="NVIDIA H100 80GB HBM3")
T4 = a_gpu(2, int(14.7 * GiB), model="Tesla T4")
GPUS = [A100, H100, T4]


@pytest.mark.parametrize(
    ("on", "without", "found"),
    [
        ("a100", (), [A100]),
        ("A100|h100", (), [A100, H100]),
        (" t4 | 1 ", (), [H100, T4]),
        (">=40GiB", (), [A100, H100]),  # as it is sold: the driver shows a little less
        ("<40GiB", (), [T4]),
        (">40GiB", (), [H100]),
        ("<=40GiB", (), [A100, T4]),
        ("nvidia&<80GiB", (), [A100]),
        ("h100 80gb", (), [H100]),
        ("GPU-2", (), [T4]),
        ("", ("0",), [H100, T4]),
        ("", ("0", "GPU-2"), [H100]),
        ("nvidia", ("1",), [A100]),
    ],
)
def test_gpus_are_chosen_by_model_memory_and_name(on, without, found):
    assert selected(GPUS, 1, on, without) == found


@pytest.mark.parametrize(
    ("on", "without", "count", "said"),
    [
        ("a10", (), 1, "no GPU here is 'a10'."),
        ("a100", (), 2, "only 1 GPU here is 'a100'."),
        ("nvidia", ("0", "1"), 1, "no GPU here is 'nvidia' and not GPU 0, 1."),
    ],
)
def test_a_choice_that_no_gpu_meets_is_refused_with_what_the_machine_has(on, without, count, said):
    with pytest.raises(NeverFits) as caught:
        selected(GPUS, count, on, without)

    assert caught.value.message == said
    assert "1 x Tesla T4 (14.7 GiB, GPU 2)" in caught.value.hint


@pytest.mark.parametrize("on", ["|", ">=much", ">= "])
def test_a_choice_that_cannot_be_read_is_misuse(on):
    with pytest.raises(UsageError) as caught:
        selected(GPUS, 1, on, ())

    assert caught.value.exit_code == 2


def test_the_size_of_a_virtual_gpu_is_taken_as_it_is():
    with pytest.raises(NeverFits):
        selected([a_virtual_gpu(0, 2 * GiB - 1)], 1, ">=2GiB", ())
