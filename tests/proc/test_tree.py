"""Which processes belong to a tree, and which step ends it next, on made-up process tables."""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given
from hypothesis import strategies as st

from grn.proc.tree import ASK, KILL, Escalation, Process, below, family, relatives

ME = 1000
GRACE_S, AGAIN_S, GIVE_UP_S = 5.0, 0.1, 3.0


@st.composite
def tables(draw: st.DrawFn) -> list[Process]:
    """Make processes 1 to N in any order, each with any parent: a table can contradict itself."""
    count = draw(st.integers(1, 25))
    numbers = st.integers(0, count + 2)
    return [
        Process(pid, draw(numbers), group=draw(numbers), session=draw(numbers))
        for pid in draw(st.permutations(range(1, count + 1)))
    ]


some_pids = st.sets(st.integers(1, 27))


def is_under(one: Process, tops: set[int], table: list[Process], barred: set[int]) -> bool:
    """Say by walking up whether a process is one of `tops` or below one, with none barred above."""
    by_pid = {process.pid: process for process in table}
    walked: set[int] = set()
    while one.pid not in walked and one.pid not in barred:
        if one.pid in tops:
            return True
        walked.add(one.pid)
        if one.parent not in by_pid:
            return False
        one = by_pid[one.parent]
    return False


@given(tables(), some_pids, some_pids)
def test_a_family_is_its_seeds_and_all_that_descend_from_them(
    table: list[Process], seeds: set[int], spared: set[int]
) -> None:
    found = family(table, seeds, spared)

    expected = {one.pid for one in table if is_under(one, seeds - spared, table, spared)}
    assert {one.pid for one in found} == expected
    assert len(found) == len(expected)


@given(tables(), st.integers(1, 27))
def test_parents_come_before_their_children(table: list[Process], root: int) -> None:
    found = [one.pid for one in below(table, root)]

    parents = {one.pid: one.parent for one in table}
    for place, pid in enumerate(found):
        assert parents[pid] == root or parents[pid] in found[:place]


@given(tables(), some_pids)
def test_relatives_are_marked_or_of_a_session_that_a_marked_process_began_or_below(
    table: list[Process], marked: set[int]
) -> None:
    living = {one.pid for one in table}
    by_login = {one.session for one in table if one.session in living - marked}
    began = {one.session for one in table if one.pid in marked} - by_login
    tops = marked | {one.pid for one in table if one.session in began}

    found = {one.pid for one in relatives(table, marked)}

    assert found == {one.pid for one in table if is_under(one, tops, table, set())}


def test_a_login_session_that_a_marked_process_is_in_is_left_alone() -> None:
    shell, job, editor = Process(10, session=10), Process(11, 10, session=10), Process(12, 10)
    editor.session = 10

    assert [one.pid for one in relatives([shell, job, editor], {11})] == [11]


# --- steps ---------------------------------------------------------------------------------


def test_a_tree_is_asked_once_and_killed_repeatedly_after_the_grace() -> None:
    steps = Escalation(GRACE_S, AGAIN_S, GIVE_UP_S)
    assert steps.next_at is None
    assert steps.due(0.0) == ""

    steps.begin(1.0)
    assert [steps.due(now) for now in (1.0, 1.1, 5.9, 6.0, 6.05, 6.2)] == [
        ASK, "", "", KILL, "", KILL,
    ]  # fmt: skip
    assert not steps.has_given_up(8.9)
    assert steps.has_given_up(9.0)


def test_a_second_begin_asks_again_and_gives_a_new_grace() -> None:
    steps = Escalation(GRACE_S)
    steps.begin(0.0)
    steps.due(0.0)
    steps.begin(4.0)

    assert [steps.due(now) for now in (4.0, 5.0, 9.0)] == [ASK, "", KILL]


def test_hurry_leaves_out_the_grace_also_of_what_begins_later() -> None:
    steps = Escalation(GRACE_S)
    steps.begin(0.0)
    steps.due(0.0)
    steps.hurry(1.0)
    assert steps.due(1.0) == KILL

    steps.begin(2.0)
    assert steps.due(2.0) == KILL


@dataclass
class World:
    """Processes that hear, ignore or answer signals by forking; the strangers must survive."""

    table: list[Process]
    deaf: set[int]  # ignore being asked
    forking: dict[int, int]  # pid -> how many children it makes before it ends
    sent: list[tuple[float, str, int]] = field(default_factory=list)

    def take(self, now: float, step: str, tree: list[Process]) -> None:
        for one in tree:
            self.sent.append((now, step, one.pid))
            if self.forking.get(one.pid, 0) > 0:
                self.forking[one.pid] -= 1
                self.table.append(Process(max(p.pid for p in self.table) + 1, one.pid))
            elif step == KILL or one.pid not in self.deaf:
                self._end(one)

    def _end(self, one: Process) -> None:
        """End a process; the reaper, which is the root, adopts its children."""
        self.table.remove(one)
        for other in self.table:
            if other.parent == one.pid:
                other.parent = ME


@given(
    st.lists(st.integers(0, 12), min_size=1, max_size=12),
    some_pids,
    st.dictionaries(st.integers(1, 14), st.integers(1, 3), max_size=4),
)
def test_every_tree_ends_strangers_survive_and_nothing_is_killed_before_the_grace(
    parents: list[int], deaf: set[int], forking: dict[int, int]
) -> None:
    """Each process has an earlier one as its parent, or the root, so all belong to the tree."""
    strangers = [Process(pid, 0) for pid in (2001, 2002)]
    tree = [
        Process(pid, parent if 0 < parent < pid else ME) for pid, parent in enumerate(parents, 1)
    ]
    world = World([*tree, *strangers], deaf, forking)
    steps, now = Escalation(GRACE_S, AGAIN_S, GIVE_UP_S), 0.0
    steps.begin(now)
    while (left := below(world.table, ME)) and not steps.has_given_up(now):
        step = steps.due(now)
        if step:
            world.take(now, step, left)
        now += 0.05

    assert world.table == strangers
    asked = {pid for _, step, pid in world.sent if step == ASK}
    assert asked == {one.pid for one in tree}
    assert all(at >= GRACE_S for at, step, _ in world.sent if step == KILL)
