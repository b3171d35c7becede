"""Rows of jobs, GPUs and profiles as tables of a notebook."""

from __future__ import annotations

from grn.client.tables import _JOB, Rows
from grn.protocol.queue_rows import JobRow


def test_a_table_of_a_notebook_shows_names_and_escapes_them() -> None:
    row = JobRow(3, "running", ("python", "x.py"), name="<b>", gpus=(0, 1))
    found = Rows([row], _JOB)

    assert found == [row]
    assert found[0].gpus == (0, 1)
    text = found._repr_html_()
    assert repr(found).splitlines() == [
        "id  state    name  command      GPU   peak  ran  why",
        "3   running  <b>   python x.py  0, 1",
    ]
    assert "<td>3</td><td>running</td><td>&lt;b&gt;</td><td>python x.py</td><td>0, 1</td>" in text


def test_a_long_table_is_cut_and_an_empty_one_says_so() -> None:
    rows = [JobRow(number, "queued", ("true",)) for number in range(1, 100_001)]
    found = Rows(rows, _JOB)

    assert len(found) == 100_000
    assert repr(found).splitlines()[-1] == "(and 99,800 more)"
    assert found._repr_html_().count("<tr>") == 201
    assert repr(Rows([], _JOB)).splitlines()[-1] == "(none)"
    assert found._repr_html_().endswith("<p>(and 99,800 more)</p>")
