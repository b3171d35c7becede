"""Frozen values whose classes are cheap to make.

A class of `dataclasses` costs a millisecond and its module ten, more than `grn ls` may take for all
its rows. A subclass of `Record` is a frozen dataclass with slots to type checkers, to its users and
to `dataclasses.replace` and `fields`; only these import `dataclasses`.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Mapping
    from typing import Any, ClassVar, TypeVar

    from typing_extensions import dataclass_transform

    Same = TypeVar("Same", bound="Record")
else:

    def dataclass_transform(**_given):
        return lambda made: made


_put = object.__setattr__


def names_of(record: Any) -> tuple[str, ...]:
    """Return the names of the fields of a record or of its class."""
    names: tuple[str, ...] = record.__slots__
    return names


def fields_of(record: Any) -> dict[str, Any]:
    """Return the fields of a record by name."""
    return {name: getattr(record, name) for name in record.__slots__}


class _Fields:
    """The fields as `dataclasses` describes them, worked out when it first asks."""

    def __init__(self) -> None:
        self._known: dict[type, Any] = {}  # msgspec asks for each value that it encodes

    def __get__(self, _value: object, owner: Any) -> Any:
        found = self._known.get(owner)
        if found is None:
            import dataclasses

            made = dataclasses.make_dataclass(
                owner.__name__,
                [
                    (name, owner.__annotations__[name], _described(owner.defaults, name))
                    for name in names_of(owner)
                ],
            )
            found = self._known[owner] = getattr(made, "__dataclass_fields__")  # noqa: B009
        return found


def _described(defaults: Mapping[str, Any], name: str) -> Any:
    import dataclasses

    if name not in defaults:
        return dataclasses.field()
    if isinstance(defaults[name], dict):
        return dataclasses.field(default_factory=dict)
    return dataclasses.field(default=defaults[name])


class _RecordClass(type):
    """Gives a class slots for its annotated names."""

    def __new__(cls, name: str, bases: tuple[type, ...], body: dict[str, Any]) -> _RecordClass:
        if bases:
            names = tuple(body.get("__annotations__", ()))
            body["defaults"] = {one: body.pop(one) for one in names if one in body}
            body["__slots__"] = names
        return super().__new__(cls, name, bases, body)


@dataclass_transform(frozen_default=True)
class Record(metaclass=_RecordClass):
    """A frozen value with the annotated fields of its class; a default `{}` is made each time."""

    __slots__ = ()
    if TYPE_CHECKING:
        defaults: ClassVar[Mapping[str, Any]]  # of the fields that have one
    else:
        defaults = {}
        __dataclass_fields__ = _Fields()

        def __init__(self, *args: Any, **given: Any) -> None:
            kind = type(self)
            if len(args) == len(kind.__slots__) and not given and dict not in map(type, args):
                for name, value in zip(kind.__slots__, args, strict=True):
                    _put(self, name, value)
                return
            values = {**kind.defaults, **dict(zip(kind.__slots__, args, strict=False)), **given}
            if len(values) != len(kind.__slots__):
                odd = values.keys() ^ set(kind.__slots__)
                raise TypeError(f"{kind.__name__}() misses, or does not know: {', '.join(odd)}")
            for name, value in values.items():
                _put(self, name, dict(value) if value.__class__ is dict else value)

    def but(self: Same, **changes: Any) -> Same:
        """Return a copy with some fields changed; itself where there are none."""
        if not changes:
            return self
        made = object.__new__(type(self))
        for name, value in {**fields_of(self), **changes}.items():
            _put(made, name, value)
        return made

    def __setattr__(self, name: str, value: Any) -> None:
        raise AttributeError(f"cannot assign to field '{name}'")

    def __delattr__(self, name: str) -> None:
        raise AttributeError(f"cannot delete field '{name}'")

    def __eq__(self, other: object) -> bool:
        if type(self) is not type(other):
            return NotImplemented
        return fields_of(self) == fields_of(other)

    def __hash__(self) -> int:
        return hash(tuple(getattr(self, name) for name in names_of(self)))

    def __repr__(self) -> str:
        # The environment may hold secrets.
        said = (f"{k}={v!r}" for k, v in fields_of(self).items() if "environment" not in k)
        return f"{type(self).__name__}({', '.join(said)})"

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), tuple(getattr(self, name) for name in names_of(self))
