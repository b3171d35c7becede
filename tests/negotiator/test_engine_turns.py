"""Stories of whose turn it is, and of nobody waiting for ever."""

from grn.model.gpu import GpuHealth
from grn.model.units import GiB
from grn.negotiator.events import ProfileForgotten, WaitReason
from grn.negotiator.schedule.room.ledger import Rules
from tests.builders import NO_GUARD, Story, a_gpu, a_profile, a_run, a_use, some_gpus

BIG, SMALL = {"mem_bytes": 20 * GiB}, {"mem_bytes": 4 * GiB}
PATIENT = Rules(NO_GUARD, patience_s=100.0)


def a_full_gpu(**changes):
    story = Story(**changes)
    story.asks("x", **BIG)
    return story


# --- turns ---------------------------------------------------------------------------------


def test_the_older_is_first():
    story = a_full_gpu()
    for key in "abc":
        story.asks(key, **BIG)

    assert [story.ends("x"), story.ends("a"), story.ends("b")] == [["a"], ["b"], ["c"]]


def test_a_higher_priority_is_first():
    story = a_full_gpu()
    story.asks("a", **BIG)
    story.asks("b", priority=1, **BIG)
    story.asks("c", priority=-1, **BIG)
    story.asks("d", **BIG)
    order = []
    last = "x"
    for _ in range(4):
        (last,) = story.ends(last)
        order.append(last)

    assert order == ["b", "a", "d", "c"]


def test_a_retry_is_before_all_priorities():
    story = a_full_gpu()
    story.asks("a", priority=9, **BIG)
    story.asks("b", attempt=1, **BIG)

    assert story.ends("x") == ["b"]


def test_many_alike_do_not_pass_an_older_one_of_another_kind():
    story = a_full_gpu()
    story.asks("a1", mem_bytes=8 * GiB)
    story.asks("b", job_type="b.py", mem_bytes=8 * GiB)
    story.asks("a2", mem_bytes=8 * GiB)
    story.asks("a3", mem_bytes=8 * GiB)

    assert story.ends("x") == ["a1", "b", "a2"]


def test_users_take_turns_however_many_jobs_one_has():
    story = a_full_gpu()
    for number in range(5):
        story.asks(f"a{number}", user=1, **BIG)
    for number in range(2):
        story.asks(f"b{number}", user=2, **BIG)
    order, last = [], "x"
    for _ in range(7):
        (last,) = story.ends(last)
        order.append(last)

    assert order == ["a0", "b0", "a1", "b1", "a2", "a3", "a4"]


def test_who_comes_later_goes_first_until_it_has_had_as_much():
    story = a_full_gpu()
    for number in range(6):
        story.asks(f"a{number}", user=1, **BIG)
    last = "x"
    for _ in range(4):
        (last,) = story.ends(last)  # the last is expected to run for ten minutes
    for number in range(3):
        story.asks(f"b{number}", user=2, **BIG)
    order = []
    for _ in range(5):
        (last,) = story.ends(last)
        order.append(last)

    assert order == ["b0", "b1", "a4", "b2", "a5"]


def test_a_type_known_to_be_short_goes_before_a_long_one():
    long = a_profile(a_run(GiB, duration_s=7200.0), job_type="long")
    short = a_profile(a_run(GiB, duration_s=60.0), job_type="short")
    story = a_full_gpu(profiles=(long, short))
    story.asks("a", job_type="long", **BIG)
    story.asks("b", job_type="short", **BIG)
    story.asks("c", job_type="long", priority=1, **BIG)

    assert [story.ends("x"), story.ends("c"), story.ends("b")] == [["c"], ["b"], ["a"]]


def with_epochs(number):
    return {"arguments": (("epochs", float(number)),), **BIG}


def test_of_one_type_the_call_with_few_epochs_goes_first():
    known = a_profile(a_run(GiB, duration_s=1200.0, arguments=(("epochs", 20.0),)))
    story = a_full_gpu(profiles=(known,))
    story.asks("a", **with_epochs(50))
    story.asks("b", **with_epochs(5))

    assert [story.ends("x"), story.ends("b")] == [["b"], ["a"]]


def test_one_that_waits_goes_before_others_once_its_like_have_shown_to_be_short():
    story = Story(some_gpus(2))
    story.asks("x", job_type="x.py", **BIG)
    story.asks("first", job_type="new.py", **BIG)
    story.asks("a", job_type="a.py", **BIG)
    story.asks("later", job_type="new.py", **BIG)
    story.asks("again", job_type="new.py", **BIG)
    order = []
    for last in ("first", "later", "again"):
        order += story.ends(last, after_s=60, peak_bytes=GiB)

    assert order == ["later", "again", "a"]


def test_one_that_turns_out_to_be_long_goes_back_among_the_others():
    known = a_profile(a_run(GiB, duration_s=800.0), job_type="new.py")
    story = Story(some_gpus(2), profiles=(known,))
    story.asks("x", job_type="x.py", **BIG)
    story.asks("first", job_type="new.py", **BIG)
    story.asks("a", job_type="a.py", **BIG)
    story.asks("later", job_type="new.py", **BIG)

    assert story.ends("first", after_s=8000, peak_bytes=GiB) == ["a"]


def test_a_type_that_was_forgotten_is_not_short_any_more():
    known = a_profile(a_run(GiB, duration_s=60.0), job_type="new.py")
    story = a_full_gpu(profiles=(known,))
    story.asks("a", job_type="a.py", **BIG)
    story.asks("b", job_type="new.py", **BIG)
    story.tell(ProfileForgotten(story.at, "new.py"))

    assert story.ends("x") == ["a"]


def test_one_that_fits_passes_an_older_one_that_does_not():
    story = a_full_gpu()
    story.asks("a", **BIG)

    assert story.asks("b", **SMALL) == ["b"]


# --- patience ------------------------------------------------------------------------------


def a_crowd(gpus=1):
    """Return a story in which small jobs keep coming and one big one has waited long."""
    story = Story(some_gpus(gpus), PATIENT)
    for number in range(6 * gpus):
        story.asks(f"s{number}", job_type="small.py", **SMALL)
    story.asks("big", **BIG)
    return story


def test_small_jobs_that_keep_coming_do_not_starve_a_big_one():
    story = a_crowd()
    running = [f"s{number}" for number in range(6)]
    for number in range(6, 60):
        story.ends(running.pop(0), after_s=10.0)
        if "big" in story.leases:
            break
        running += story.asks(f"s{number}", job_type="small.py", **SMALL)

    assert "big" in story.leases
    assert story.at < 250


def test_after_its_patience_the_oldest_is_kept_a_gpu_free():
    story = a_crowd()
    story.ends("s0", after_s=50.0)
    assert story.asks("early", job_type="small.py", **SMALL) == ["early"]
    story.ends("s1", after_s=60.0)

    assert story.asks("late", job_type="small.py", **SMALL) == []
    assert story.why("late") is WaitReason.YIELDS_TO_OLDER
    for key in ("s2", "s3", "s4"):
        assert story.ends(key) == []
    assert story.ends("s5") == ["big"]
    story.ends("early")
    assert "late" in story.leases


def test_only_the_gpus_that_are_needed_are_closed():
    story = a_crowd(gpus=2)
    story.ends("s0", after_s=110.0)
    story.ends("s1")  # one place on each GPU

    assert story.asks("late", job_type="small.py", **SMALL) == ["late"]
    assert story.asks("later", job_type="small.py", **SMALL) == []


def test_a_closed_gpu_opens_when_the_one_it_was_kept_for_leaves():
    story = a_crowd()
    story.ends("s0", after_s=110.0)
    assert story.asks("late", job_type="small.py", **SMALL) == []

    assert story.gives_up("big") == ["late"]


def test_reserved_gpus_are_backfilled_within_a_time_limit():
    story = Story(some_gpus(2), PATIENT)
    story.asks("x", time_limit_s=1000.0, **BIG)
    story.asks("pair", gpus=2, **BIG)
    story.passes(200.0)

    assert story.asks("long", time_limit_s=900.0, **BIG) == []
    assert story.asks("short", time_limit_s=700.0, **BIG) == ["short"]


def test_a_job_for_two_gpus_is_not_starved_by_jobs_for_one():
    story = Story(some_gpus(2), PATIENT)
    story.asks("x0", **BIG)
    story.asks("x1", **BIG)
    story.asks("pair", gpus=2, **BIG)
    story.looks(150.0)
    story.ends("x0")

    assert story.asks("new", **BIG) == []
    assert story.ends("x1") == ["pair"]


def test_no_gpu_is_closed_for_one_who_waits_for_its_siblings_first_run():
    story = Story(some_gpus(2), PATIENT)
    story.asks("first")
    story.asks("sibling")
    story.memory["first"] = 0
    story.passes(200)

    assert story.why("sibling") is WaitReason.FIRST_RUN_ELSEWHERE
    assert story.asks("other", job_type="other.py", **SMALL) == ["other"]


def test_no_gpu_is_closed_for_one_who_waits_for_a_silent_gpu():
    story = Story(some_gpus(2), PATIENT)
    story.health[0] = GpuHealth.LOST
    story.looks()
    story.asks("pair", gpus=2, **SMALL)
    story.passes(200)

    assert story.why("pair") is WaitReason.GPU_SILENT
    assert story.asks("other", **SMALL) == ["other"]


def test_a_process_that_stays_has_its_own_gpu_kept_and_no_other():
    story = Story(some_gpus(2), PATIENT)
    for number in range(5):
        story.asks(f"s{number}", slots=("0",), job_type="small.py", **SMALL)
    story.asks("a", stay=("GPU-0",), **BIG)
    story.looks(150.0)

    assert story.asks("there", slots=("0",), job_type="small.py", **SMALL) == []
    assert story.asks("elsewhere", slots=("1",), job_type="small.py", **SMALL) == ["elsewhere"]
    for number in range(4):
        story.ends(f"s{number}")
    assert "a" in story.leases


def test_a_gpu_that_strangers_fill_is_not_the_one_that_is_kept():
    story = Story(some_gpus(2), PATIENT)
    story.strangers[0] = [a_use(9, 5 * GiB)]
    story.looks()
    for number in range(3):
        story.asks(f"s{number}", slots=("1",), job_type="small.py", **SMALL)
    story.asks("big", mem_bytes=22 * GiB)  # GPU 0 has more free, and never enough
    story.looks(150.0)

    assert story.asks("new", job_type="small.py", **SMALL) == ["new"]
    assert story.gpus("new") == [0]
    for number in range(3):
        story.ends(f"s{number}")
    assert story.gpus("big") == [1]


def test_no_gpu_is_closed_while_strangers_are_in_the_way_everywhere():
    story = Story([a_gpu(0)], PATIENT)
    story.strangers[0] = [a_use(9, 10 * GiB)]
    story.looks()
    story.asks("big", **BIG)
    story.looks(150.0)

    assert story.asks("small", job_type="small.py", **SMALL) == ["small"]
