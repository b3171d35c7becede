"""How long a run takes alone, foretold from the numbers it was given."""

import math

import pytest

from grn.model.job import Outcome
from grn.negotiator.learn.arguments import lasting
from grn.negotiator.learn.durations import Times
from tests.builders import a_run


def a_time(duration_s, crowd=None, outcome=Outcome.OK, **arguments):
    given = tuple(arguments.items())
    return a_run(duration_s=duration_s, crowd=crowd, outcome=outcome, arguments=given)


def foretold(*runs, power=1.0, **arguments):
    return Times(runs, power).alone_s(tuple(arguments.items()))


@pytest.mark.parametrize("runs", [(), (a_time(50.0, outcome=Outcome.FAILED),), (a_time(0.0),)])
def test_nobody_knows_before_a_run_has_ended_well(runs):
    assert foretold(*runs, epochs=20.0) is None


def test_without_arguments_the_usual_time_counts_and_not_one_that_ended_at_once():
    assert foretold(a_time(3600.0), a_time(1.0), a_time(3700.0)) == pytest.approx(3600.0)


def test_a_single_run_foretells_as_many_times_the_epochs():
    assert foretold(a_time(600.0, epochs=20.0), epochs=50.0) == pytest.approx(1500.0, rel=0.01)


def test_a_batch_size_counts_as_runs_show():
    seen = a_time(1000.0, batch=32.0), a_time(520.0, batch=64.0), a_time(255.0, batch=128.0)

    assert foretold(seen[0], batch=128.0) == pytest.approx(1000.0)
    assert foretold(*seen, batch=256.0) == pytest.approx(128.0, rel=0.3)
    assert foretold(*seen, batch=32.0) == pytest.approx(1000.0, rel=0.15)


def test_epochs_and_batch_are_told_apart():
    seen = [
        a_time(30 * epochs * 32 / batch, epochs=epochs, batch=batch)
        for epochs, batch in ((20.0, 32.0), (20.0, 128.0), (50.0, 64.0), (50.0, 32.0))
    ]

    assert foretold(*seen, epochs=50.0, batch=128.0) == pytest.approx(375.0, rel=0.2)


def test_epochs_that_do_not_count_are_found_out():
    seen = [a_time(600.0, epochs=epochs) for epochs in (10.0, 40.0, 160.0)]

    assert foretold(*seen, epochs=640.0) == pytest.approx(600.0, rel=0.2)


def test_runs_with_the_same_words_count_before_others():
    seen = [a_time(100.0, net="small")] * 3 + [a_time(5000.0, net="big")] * 3

    assert foretold(*seen, net="small") < 250
    assert foretold(*seen, net="big") > 2000


def test_seeds_and_names_say_nothing_of_time():
    seen = a_time(100.0, seed=1.0, name="a"), a_time(900.0, seed=2.0, name="b")

    assert foretold(*seen, seed=1.0, name="a") == foretold(*seen, seed=77.0, name="c")


@pytest.mark.parametrize(("power", "alone_s"), [(1.0, 500.0), (0.5, 1000 / math.sqrt(2))])
def test_time_beside_others_counts_for_less(power, alone_s):
    assert foretold(a_time(1000.0, crowd=math.log(2)), power=power) == pytest.approx(alone_s)


@pytest.mark.parametrize("value", ["many", 0.0, -5.0])
def test_what_has_no_logarithm_is_left_out(value):
    assert foretold(a_time(600.0, epochs=value), epochs=20.0) is not None
    assert foretold(a_time(600.0, epochs=20.0), epochs=value) is not None


def test_the_same_number_everywhere_is_no_trouble():
    assert foretold(*[a_time(600.0, batch=64.0, epochs=5.0)] * 5, batch=64.0, epochs=5.0) == (
        pytest.approx(600.0)
    )


def test_jobs_wait_together_when_they_go_on_about_equally_long():
    def of(epochs):
        return lasting((("epochs", epochs), ("lr", 0.1), ("batch", 64.0)))

    assert of(20.0) == of(18.0)
    assert of(20.0) != of(50.0)
    assert of("many") == of(0.0) == ()
