"""What is known of a GPU."""

import pytest

from grn.model.gpu import GpuKind
from tests.builders import a_gpu


@pytest.mark.parametrize(
    ("kind", "name"),
    [(GpuKind.CARD, "3"), (GpuKind.VIRTUAL, "3"), (GpuKind.MIG, "MIG-abc")],
)
def test_a_gpu_is_shown_by_its_index_but_a_slice_by_its_uuid(kind, name):
    assert a_gpu(3, uuid="MIG-abc", kind=kind).shown_name == name
