"""What the adapter of Slurm remembers between two looks."""

from grn.queue.sites.pilots.slurm import Since


def test_a_look_without_an_answer_neither_begins_nor_breaks_a_time() -> None:
    """A busy controller would else put the end of a forgotten pilot off for ever."""
    since = Since()
    since.update(0.0, [], unseen=[7])
    assert since.lasting(100.0, 0.0) == []
    since.update(100.0, [7, 8])
    since.update(110.0, [], unseen=[7])
    since.update(120.0, [7, 8])
    assert since.lasting(130.0, 30.0) == [7]
    assert since.lasting(150.0, 30.0) == [7, 8]


def test_an_answer_to_the_contrary_begins_a_time_anew() -> None:
    since = Since()
    since.update(0.0, [7])
    since.update(10.0, [])
    since.update(20.0, [7])
    assert since.lasting(49.0, 30.0) == []
