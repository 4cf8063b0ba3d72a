"""The patterns of rewrite laws: expressions over named variables, parsed from text and printed as text.

A law is written as Python: `(x*a)*b => x*(a*b)`. Lower-case names are values, literals are constants all of whose
elements have that value, calls are operators of the default domain, `@` is MatMul. `**k` at the end of a call stands
for the attributes and the inputs behind the first one, whatever they are:
`ReduceProd(Exp(x), **k) => Exp(ReduceSum(x, **k))`.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Var:
    """A value."""

    name: str

    def __repr__(self) -> str:
        return self.name


@dataclass(frozen=True, slots=True)
class Num:
    """A constant all of whose elements are this number."""

    value: float

    def __repr__(self) -> str:
        return f"{self.value:g}"


@dataclass(frozen=True, slots=True)
class OpPattern:
    """An operator; `rest` is the name bound to its attributes and further inputs ("": it must have none)."""

    op: str
    args: tuple[Expr, ...]
    rest: str = ""

    def __repr__(self) -> str:
        sign = _SIGNS.get(self.op)
        if sign is not None and len(self.args) == 2:
            return f" {sign} ".join(f"({a!r})" if _is_infix(a) else repr(a) for a in self.args)
        return f"{self.op}({', '.join([*map(repr, self.args), *([f'**{self.rest}'] if self.rest else [])])})"


Expr = Var | Num | OpPattern

_INFIX: dict[type[ast.operator], str] = {
    ast.Add: "Add",
    ast.Sub: "Sub",
    ast.Mult: "Mul",
    ast.Div: "Div",
    ast.Pow: "Pow",
    ast.MatMult: "MatMul",
}
_SIGNS = {"Add": "+", "Sub": "-", "Mul": "*", "Div": "/", "Pow": "**", "MatMul": "@"}


def _is_infix(e: Expr) -> bool:
    return isinstance(e, OpPattern) and e.op in _SIGNS


def sides(law: str) -> tuple[Expr, Expr]:
    """The two sides of a law.

    >>> sides("(x*a)*b => x*(a*b)")
    ((x * a) * b, x * (a * b))
    >>> sides("ReduceProd(Exp(x), **k) => Exp(ReduceSum(x, **k))")[1]
    Exp(ReduceSum(x, **k))
    """
    left, right = law.split("=>")
    return expression(left), expression(right)


def expression(text: str) -> Expr:
    """The expression of a text."""
    return _read(ast.parse(text.strip(), mode="eval").body)


def _read(node: ast.expr) -> Expr:
    if isinstance(node, ast.Name):
        return Var(node.id)
    if isinstance(node, ast.Constant) and isinstance(node.value, (int, float)):
        return Num(float(node.value))
    if isinstance(node, ast.BinOp):
        return OpPattern(_INFIX[type(node.op)], (_read(node.left), _read(node.right)))
    if isinstance(node, ast.UnaryOp) and isinstance(node.op, ast.USub):
        inner = _read(node.operand)
        return Num(-inner.value) if isinstance(inner, Num) else OpPattern("Neg", (inner,))
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        rest = "".join(k.value.id for k in node.keywords if k.arg is None and isinstance(k.value, ast.Name))
        return OpPattern(node.func.id, tuple(map(_read, node.args)), rest)
    raise ValueError(f"not part of a law: {ast.unparse(node)}")


def walk(e: Expr) -> Iterator[Expr]:
    """e and everything inside it, e first."""
    yield e
    if isinstance(e, OpPattern):
        for a in e.args:
            yield from walk(a)


def variables(e: Expr) -> tuple[str, ...]:
    """Names of the values in e, in the order in which they appear."""
    return tuple(dict.fromkeys(x.name for x in walk(e) if isinstance(x, Var)))
