"""Values read from the rows of the daemons' replies, the JSON that docs/json.md describes.

Standard library only: clients import it. A field that the sender leaves out has its default, so
rows of older daemons can be read, and an unknown field of a newer one is ignored; a field of the
wrong type is an error of the sender. `negotiator_rows.py` and `queue_rows.py` list the rows.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Mapping
from typing import Any, TypeVar, Union, get_args, get_origin, get_type_hints

from grn.errors import ProtocolError
from grn.model.record import Record, fields_of, names_of

Kind = TypeVar("Kind")
Reader = Callable[[Any], Any]
_known_readers: dict[type[Any], dict[str, Reader]] = {}


class BadRow(ProtocolError, ValueError):
    """A row has a field of the wrong type."""


def read(kind: type[Kind], row: Mapping[str, Any]) -> Kind:
    """Build a value from a JSON object."""
    return kind(**_known(kind, row))


def read_all(kind: type[Kind], rows: Any) -> list[Kind]:
    """Build a value from each JSON object of a list."""
    return [read(kind, row) for row in rows]


def updated(row: Kind, changes: Mapping[str, Any]) -> Kind:
    """Return a row with the fields that a JSON object has."""
    return type(row)(**{**fields_of(row), **_known(type(row), changes)})


def as_json(row: Any) -> dict[str, Any]:
    """Return a row as a JSON object with all its fields."""
    return {name: _plain(value) for name, value in fields_of(row).items()}


def _plain(value: Any) -> Any:
    if type(value) in _LEAVES:  # most values: quicker than asking whether it is a row
        return value
    if isinstance(value, tuple):
        return [_plain(one) for one in value]
    return as_json(value) if isinstance(value, Record) else value


def _known(kind: type[Any], row: Mapping[str, Any]) -> dict[str, Any]:
    """Take the known fields of a row, each checked."""
    found: dict[str, Any] = {}
    for name, reader in _readers(kind).items():
        if name in row:
            try:
                found[name] = reader(row[name])
            except _Unfit as error:
                raise BadRow(f"the field '{name}' of a {_name(kind)} is {row[name]!r}") from error
    return found


class _Unfit(Exception):
    """A value has another type than its field."""


def _name(kind: type[Any]) -> str:
    return kind.__name__.removesuffix("Row").lower()


def _readers(kind: type[Any]) -> dict[str, Reader]:
    """Return what reads each field of a row; worked out once for each kind of row."""
    if kind not in _known_readers:
        hints = get_type_hints(kind)
        _known_readers[kind] = {name: _reader(hints[name]) for name in names_of(kind)}
    return _known_readers[kind]


def _reader(hint: Any) -> Reader:
    """Return what reads a value of a type: scalars, unions of them, tuples, tables, rows."""
    origin, inner = get_origin(hint), get_args(hint)
    if isinstance(hint, type) and issubclass(hint, Record):
        return lambda value: read(hint, _fit(value, (dict,)))
    if origin is tuple and inner[-1] is Ellipsis:
        each = _reader(inner[0])
        return lambda value: tuple(map(each, _fit(value, (list, tuple, types.NoneType)) or ()))
    if origin is tuple:
        parts = [_reader(one) for one in inner]
        return lambda value: _fixed(parts, _fit(value, (list, tuple)))
    if origin is dict:
        each = _reader(inner[1])
        return lambda value: {k: each(v) for k, v in _fit(value, (dict,)).items()}
    union = inner if origin in (Union, types.UnionType) else (hint,)
    is_row = isinstance(union[0], type) and issubclass(union[0], Record)
    is_whole = is_row or get_origin(union[0]) is tuple
    if len(union) == 2 and is_whole and union[1] is types.NoneType:
        known = _reader(union[0])
        return lambda value: None if value is None else known(value)
    kinds = tuple(kind for one in union for kind in _SCALARS[one])
    return lambda value: _fit(value, kinds)


_SCALARS: Mapping[Any, tuple[type, ...]] = {
    int: (int,),
    str: (str,),
    bool: (bool, int),
    float: (int, float),
    types.NoneType: (types.NoneType,),
}


_LEAVES = (int, str, float, bool, types.NoneType)


def _fit(value: Any, kinds: tuple[type, ...]) -> Any:
    if not isinstance(value, kinds):
        raise _Unfit
    return value


def _fixed(parts: list[Reader], values: Any) -> tuple[Any, ...]:
    if len(values) != len(parts):
        raise _Unfit
    return tuple(reader(value) for reader, value in zip(parts, values, strict=True))
