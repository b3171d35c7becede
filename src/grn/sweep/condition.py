"""Conditions that leave points out: a small language of comparisons, parsed and never executed.

`bs < 64 or lr < 1e-3`, `opt in ("sgd", "adam") and not (bs * lr > 1)`: names are parameters; texts
that look like numbers count as numbers.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from grn.errors import UsageError
from grn.sweep.values import number_or_text

LONGEST = 2000
_COMPARE: dict[type[ast.cmpop], Callable[[Any, Any], bool]] = {
    ast.Lt: operator.lt, ast.LtE: operator.le, ast.Gt: operator.gt, ast.GtE: operator.ge,
    ast.Eq: operator.eq, ast.NotEq: operator.ne,
    ast.In: lambda value, group: value in group,
    ast.NotIn: lambda value, group: value not in group,
}  # fmt: skip
_COMPUTE: dict[type[ast.operator], Callable[[float, float], float]] = {
    ast.Add: operator.add, ast.Sub: operator.sub, ast.Mult: operator.mul,
    ast.Div: operator.truediv, ast.FloorDiv: operator.floordiv, ast.Mod: operator.mod,
    ast.Pow: lambda base, power: float(base) ** float(power),  # floats: never a huge number
}  # fmt: skip
_FORMS = (ast.Expression, ast.BoolOp, ast.Compare, ast.BinOp, ast.UnaryOp, ast.Constant, ast.Name,
          ast.Tuple, ast.List, ast.Load, ast.And, ast.Or, ast.Not, ast.USub, ast.UAdd,
          *_COMPARE, *_COMPUTE)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Condition:
    """One condition; points for which it does not hold are left out."""

    text: str
    _tree: ast.Expression = field(compare=False, repr=False)

    def check(self, names: Sequence[str]) -> None:
        """Refuse a condition about unknown parameters."""
        for node in ast.walk(self._tree):
            if isinstance(node, ast.Name) and node.id not in names:
                raise UsageError(
                    f"the condition '{self.text}' names '{node.id}', which is not a parameter.",
                    f"There are: {', '.join(names)}. Texts stand in quotes.",
                )

    def holds(self, point: Mapping[str, object]) -> bool:
        """True when the point stays, also while a parameter (a seed) has no value yet."""
        try:
            return bool(_value(self._tree.body, point))
        except _Unknown:
            return True
        except (TypeError, ValueError, ArithmeticError) as error:
            shown = ", ".join(f"{name}={value}" for name, value in point.items())
            message = f"the condition '{self.text}' makes no sense for {shown}: {error}."
            raise UsageError(message) from error


class _Unknown(Exception):
    """A parameter that the point has no value for."""


def parse(text: str) -> Condition:
    """Read a condition."""
    if len(text) > LONGEST:
        raise UsageError(f"a condition is longer than {LONGEST} characters.")
    try:
        tree = ast.parse(text.strip(), mode="eval")
        strange = next((node for node in ast.walk(tree) if not isinstance(node, _FORMS)), None)
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise UsageError(
            f"the condition '{text}' cannot be read.", "Write it like: bs < 64 or lr < 1e-3."
        ) from error
    if strange is not None:
        raise UsageError(
            f"the condition '{text}' has more in it than comparisons and arithmetic.",
            "Write it like: bs < 64 or lr < 1e-3.",
        )
    return Condition(text, tree)


def _value(node: ast.expr, point: Mapping[str, object]) -> Any:
    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        if node.id not in point:
            raise _Unknown
        return number_or_text(point[node.id])
    if isinstance(node, (ast.Tuple, ast.List)):
        return [_value(one, point) for one in node.elts]
    if isinstance(node, ast.BoolOp):
        found = (bool(_value(one, point)) for one in node.values)
        return all(found) if isinstance(node.op, ast.And) else any(found)
    if isinstance(node, ast.UnaryOp):
        inner = _value(node.operand, point)
        if isinstance(node.op, ast.Not):
            return not inner
        return -_number(inner) if isinstance(node.op, ast.USub) else _number(inner)
    if isinstance(node, ast.BinOp):
        left, right = _number(_value(node.left, point)), _number(_value(node.right, point))
        return _COMPUTE[type(node.op)](left, right)
    assert isinstance(node, ast.Compare)
    return _compared(node, point)


def _compared(node: ast.Compare, point: Mapping[str, object]) -> bool:
    left = _value(node.left, point)
    for kind, other in zip(node.ops, node.comparators, strict=True):
        right = _value(other, point)
        if not _COMPARE[type(kind)](left, right):
            return False
        left = right
    return True


def _number(value: object) -> float:
    if isinstance(value, (int, float)):
        return value
    raise TypeError(f"{value!r} is not a number")
