"""Lines of a batch as jobs."""

from __future__ import annotations

import pytest

from grn.batch.file import BatchJob, jobs
from grn.errors import UsageError
from grn.group.task import Needs
from grn.model.units import GiB


def read(text: bytes, needs: Needs | None = None) -> list[BatchJob]:
    return list(jobs(text.split(b"\n"), needs or Needs()))


def test_each_line_is_a_job_with_the_number_of_its_line():
    found = read(b"one\n\n  # a comment\n  two  \r\nthree")

    assert [(job.line, job.text) for job in found] == [(1, b"one"), (4, b"two"), (5, b"three")]
    assert all(job.needs == Needs() for job in found)


def test_a_trailing_backslash_goes_on_in_the_next_line():
    found = read(b"train \\\n  --lr 1 \\\n  --bs 2\nnext")

    assert [(job.line, job.text) for job in found] == [
        (1, b"train   --lr 1   --bs 2"),
        (4, b"next"),
    ]


def test_an_escaped_backslash_at_the_end_is_the_shells():
    assert [job.text for job in read(b"echo a\\\\\nnext")] == [b"echo a\\\\", b"next"]


def test_a_comment_sign_inside_a_job_that_goes_on_belongs_to_it():
    assert [job.text for job in read(b"echo a \\\n# b")] == [b"echo a # b"]


def test_a_last_line_that_wants_to_go_on_is_a_job_all_the_same():
    assert [job.text for job in read(b"echo a \\")] == [b"echo a"]


def test_what_is_not_text_is_kept_byte_for_byte():
    assert [job.text for job in read(b"echo \xff\xfe '\x01'")] == [b"echo \xff\xfe '\x01'"]


@pytest.mark.parametrize(
    ("options", "needs"),
    [
        (b"mem=6GiB gpus=2", Needs(2, 6 * GiB)),
        (b"exclusive", Needs(is_exclusive=True)),
        (b"exclusive=false", Needs()),
        (b"priority=-5 type=eval", Needs(priority=-5, job_type="eval")),
        (b"'type=my model'", Needs(job_type="my model")),
        (b"at=gpu2", Needs(at="gpu2")),
        (b"idle_limit=3h", Needs(idle_limit_s=10800.0)),
        (b"", Needs()),
    ],
)
def test_options_in_front_are_needs(options, needs):
    (job,) = read(b"[" + options + b"] python train.py")

    assert (job.needs, job.text) == (needs, b"python train.py")


def test_options_come_on_top_of_what_all_lines_need():
    (job,) = read(b"[gpus=2] x", Needs(mem_bytes=GiB, priority=3))

    assert job.needs == Needs(2, GiB, priority=3)


def test_a_job_may_have_a_name():
    (job,) = read(b"[name=baseline mem=1GiB] x")

    assert (job.name, job.needs) == ("baseline", Needs(mem_bytes=GiB))


@pytest.mark.parametrize("line", [b"[ -d /tmp ] && echo x", b"[[ -n x ]] && y", b"["])
def test_a_bracket_of_the_shell_is_left_alone(line):
    (job,) = read(line)

    assert job.text == line


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (b"[mem=6GiB python train.py", "not closed"),
        (b"[mem=6GiB]", "no command"),
        (b"[mem=lots] x", "mem=lots: 'lots' is not a size"),
        (b"[mem=10] x", "mem=10: '10' would be 10 bytes"),
        (b"[mem=0] x", "mem=0: the size '0' is out of range"),
        (b"[idle_limit=soon] x", "idle_limit=soon: invalid time 'soon'"),
        (b"[mem] x", "'mem' needs a value"),
        (b"[gpus=-1] x", "out of range"),
        (b"[gpus=two] x", "gpus=two is not a whole number"),
        (b"[priority=5000] x", "out of range"),
        (b"[memory=1GiB] x", "there is no option 'memory'"),
        (b"[exclusive=maybe] x", "'exclusive' takes no value but true and false"),
        (b"[gpus=1 gpus=2] x", "twice"),
        (b"[name='open] x", "cannot be read"),
        (b"[name=\xff] x", "cannot be read"),
    ],
)
def test_a_mistake_is_told_with_its_line(line, said):
    with pytest.raises(UsageError) as caught:
        read(b"good\n\n" + line)

    assert caught.value.message.startswith("line 3: ")
    assert said in caught.value.message


def test_like_lines_are_told_apart():
    assert [job.repeat for job in read(b"a\nb\na\n[mem=1GiB] a")] == [0, 0, 1, 2]


def test_a_mistyped_option_is_told_with_the_one_that_was_meant():
    with pytest.raises(UsageError) as caught:
        read(b"[gpsu=2] x")
    assert caught.value.hint == "Did you mean gpus?"
