"""Values of which a decision makes dozens: dataclasses with slots that cost little to make.

They are frozen to type checkers only. To enforce that while grn runs, each field would be set by a
call of its own, which triples the time to make one.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform
else:

    def dataclass_transform(**_given):
        return lambda made: made


Kind = TypeVar("Kind")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value(made: type[Kind]) -> type[Kind]:
    """Make a class a dataclass whose instances are not to be changed."""
    return dataclass(slots=True, unsafe_hash=True)(made)
