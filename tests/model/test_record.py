"""Records are cheap to make, and dataclasses to `dataclasses` and msgspec."""

from __future__ import annotations

from dataclasses import fields, replace

from grn.model.record import Record


class Row(Record):
    """A row."""

    name: str
    size: int = 0


def test_a_record_is_a_dataclass_to_dataclasses() -> None:
    assert [field.name for field in fields(Row)] == ["name", "size"]
    assert replace(Row("a"), size=2) == Row("a", 2)


def test_its_fields_are_described_once() -> None:
    assert fields(Row("a")) == fields(Row("b"))
    assert fields(Row("a"))[0] is fields(Row("b"))[0]


def test_a_copy_without_changes_is_the_record_itself() -> None:
    row = Row("a", 2)
    assert row.but() is row
    assert row.but(size=3) == Row("a", 3)


class Longer(Row):
    """A row with more: its fields are not those of a row."""

    name: str
    size: int = 0
    note: str = ""


def test_a_class_has_its_own_fields() -> None:
    assert [field.name for field in fields(Row)] == ["name", "size"]
    assert [field.name for field in fields(Longer)] == ["name", "size", "note"]
