"""What is refused at once, and with which numbers."""

import pytest

from grn.model.units import GiB
from grn.negotiator.schedule import admission
from tests.builders import a_book, a_gpu, a_lease, a_reading, a_request, a_use

SMALL, LARGE = a_gpu(0, 8 * GiB, model="Small"), a_gpu(1, 24 * GiB)


def refusal(request, books, proved=None):
    """Refuse a request where runs have proved all GPUs too small, or have proved nothing."""
    return admission.refusal(request, books, lambda _: proved)


def books(*on_small):
    return [a_book(SMALL, reading=a_reading(SMALL, *on_small)), a_book(LARGE)]


@pytest.mark.parametrize(
    "wish",
    [
        {},
        {"gpus": 2},
        {"mem_bytes": 24 * GiB},
        {"mem_bytes": 8 * GiB, "gpus": 2},
        {"slots": ("0",)},
        {"slots": ("0", "GPU-1"), "gpus": 2},
        {"slots": ("1",), "mem_bytes": 24 * GiB},
        {"is_exclusive": True, "gpus": 2},
        {"stay": ("GPU-1",), "mem_bytes": 24 * GiB},
        {"pid": 5},
    ],
)
def test_what_may_fit_some_day_is_not_refused(wish):
    assert refusal(a_request(**wish), books()) is None


@pytest.mark.parametrize(
    ("wish", "numbers", "code"),
    [
        ({"mem_bytes": 30 * GiB}, ("30.0 GiB", "24.0 GiB"), "NeverFits"),
        ({"mem_bytes": 9 * GiB, "gpus": 2}, ("9.0 GiB", "2 GPUs", "8.0 GiB"), "NeverFits"),
        ({"mem_bytes": 9 * GiB, "slots": ("0",)}, ("9.0 GiB", "8.0 GiB"), "NeverFits"),
        ({"gpus": 3}, ("3 GPUs", "2"), "NeverFits"),
        ({"gpus": 2, "slots": ("0",)}, ("2 GPUs", "1"), "NeverFits"),
        ({"slots": ("7",)}, ("GPU 7", "0, 1"), "UsageError"),
        ({"slots": ("0", "GPU-9")}, ("GPU GPU-9",), "UsageError"),
        ({"gpus": 2, "stay": ("GPU-1",)}, ("GPU 1", "2 GPUs"), "UsageError"),
        # A process that cannot leave a small GPU never gets what only a larger one has.
        ({"mem_bytes": 9 * GiB, "stay": ("GPU-0",)}, ("9.0 GiB", "8.0 GiB"), "NeverFits"),
    ],
)
def test_what_never_fits_is_refused_with_the_numbers_that_do_not_fit(wish, numbers, code):
    refused = refusal(a_request("k", **wish), books())

    assert refused is not None
    assert (refused.key, refused.code) == ("k", code)
    assert refused.hint
    for number in numbers:
        assert number in f"{refused.message} {refused.hint}"


def test_a_process_with_memory_on_one_gpu_is_refused_two():
    request = a_request(gpus=2, pid=5)

    assert refusal(request, books()) is None
    refused = refusal(request, books(a_use(5, GiB)))
    assert refused is not None
    assert "GPU 0" in refused.message


def test_a_process_with_a_lease_on_one_gpu_is_refused_two():
    small = a_book(SMALL, leases=[a_lease("x", gpus=(SMALL.uuid,), pid=5)])

    assert refusal(a_request(gpus=2, pid=5), [small, a_book(LARGE)]) is not None


def test_a_silent_gpu_is_no_reason_to_refuse():
    silent = a_book(LARGE, reading=a_reading(LARGE, used_bytes=None))

    assert refusal(a_request(mem_bytes=24 * GiB), [silent]) is None


def test_a_job_that_runs_have_proved_too_large_is_refused_unless_its_request_is_at_fault():
    refused = refusal(a_request("k"), books(), "it needs 30.0 GiB.")
    assert refused is not None
    assert (refused.message, refused.code) == ("it needs 30.0 GiB.", "NeverFits")
    refused = refusal(a_request("k", gpus=3), books(), "it needs 30.0 GiB.")
    assert refused is not None
    assert "3 GPUs" in refused.message
