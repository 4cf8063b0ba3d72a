"""All cases of the kernel tests, the machine classes of each table, and which cases are compiled.

A run compiles one case of each kind for each machine class: cases of a kind differ in sizes alone, and wider, narrower
and sharing classes each take another one of them. Those that are left are compiled under the `slow` marker; all cases
run in the interpreter of kernels, which needs no compiler.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass

from onnxfuse.ir.products import AMX_BF16
from onnxfuse.target import has_features
from tests.kernels.cases import (
    border,
    chain,
    codes,
    contraction,
    elementwise,
    form,
    function,
    half,
    movement,
    operator,
    recurrent,
    row,
    sample,
    scan,
    scatter,
    signal,
    window,
    winograd,
)
from tests.kernels.compiled import CPUS, HERE, LIKE, SHARING, Case

PLAIN = tuple(CPUS)
UNITS = (*PLAIN, "amx-model", SHARING)
# Where the matrix unit itself is, its model runs the products of codes alone.
HALVES = (*(PLAIN if has_features(AMX_BF16.features) else (*PLAIN, "amx-model")), SHARING, "bf16")
MODELLED = ("amx-model", "bf16", "little-cache", SHARING)  # classes that any machine with their vectors runs
WIDTHS = [target for target in HERE if target not in LIKE]  # classes of this architecture, by their vectors
NARROW = WIDTHS[1:]  # those that take turns in all tables
# Cases that are the only ones of their kind to call a function of the headers.
MORE = {
    "codes_image_of_colours", "groups2_dilated", "groups4", "half_depth", "images_lines", "IsInf_11",
    "mean_padded_form_0", "shift_RIGHT_int16", "typed2_int32",
}  # fmt: skip
PER_UNIT = 64  # kernels of one translation unit


@dataclass(frozen=True, slots=True)
class Table:
    """Cases, and the machine classes that they are scheduled for.

    The narrower classes take turns: each kind is compiled for one of them. So do all classes with single operators.
    """

    cases: Sequence[Case]
    classes: tuple[str, ...] = PLAIN
    in_turn: bool = False

    def usual(self, target: str) -> tuple[Case, ...]:
        """The cases that every run compiles for a machine class."""
        kinds: dict[Hashable, list[Case]] = defaultdict(list)
        for case in self.cases:
            kinds[kind(case)].append(case)
        own = LIKE.get(target, target)
        turn = WIDTHS.index(own) if own in WIDTHS else len(WIDTHS)
        turns = WIDTHS if self.in_turn else NARROW if own in NARROW else [own]
        taken = [of for number, of in enumerate(kinds.values()) if turns[number % len(turns)] == own]
        chosen = {of[turn % len(of)].name for of in taken}
        return tuple(case for case in self.cases if case.name in chosen | MORE)


TABLES = {
    "border": Table(border.CASES),
    "chain": Table(chain.CASES),
    "codes": Table(codes.CASES, UNITS),
    "windows of codes": Table((*codes.WINDOWS, codes.ZEROS_OF_CHANNELS), (*PLAIN, SHARING)),
    "codes made": Table(codes.MADE, (*PLAIN, SHARING)),
    "attentions of codes": Table(codes.ATTENTIONS, (*PLAIN, SHARING)),
    "contraction": Table(contraction.CASES, (*PLAIN, SHARING)),
    "by blocks": Table(contraction.BLOCKWISE, ("little-cache",)),
    "elementwise": Table(elementwise.CASES),
    "form": Table(form.CASES),
    "function": Table(function.CASES),
    "half": Table(half.CASES, HALVES),
    "movement": Table(movement.CASES),
    "operator": Table(operator.CASES, in_turn=True),
    "recurrent": Table(recurrent.CASES),
    "row": Table(row.CASES),
    "sample": Table(sample.CASES),
    "scan": Table(scan.CASES),
    "scatter": Table(scatter.CASES),
    "signal": Table(signal.CASES),
    "window": Table(window.CASES),
    "winograd": Table(winograd.CASES),
}


def kind(case: Case) -> Hashable:
    """What cases have in common that differ in sizes and attributes alone."""
    graph = case.graph
    inputs = tuple((t.dtype, len(t.shape)) for v in graph.inputs if (t := graph.types[v]) is not None)
    chosen = (case.last, case.half, case.way, case.form, case.winograd)
    return tuple(n.op for n in graph.nodes), inputs, len(case.sizes) > 1, chosen


def kernels() -> Iterator[tuple[Case, str]]:
    """Every case for each machine class of its table."""
    for table in TABLES.values():
        yield from ((case, target) for case in table.cases for target in table.classes)


@dataclass(frozen=True, slots=True)
class Unit:
    """Cases whose kernels for a machine class are compiled together."""

    table: str
    cases: tuple[Case, ...]
    target: str
    usual: bool


def units() -> Iterator[Unit]:
    """All translation units for machine classes of this architecture, those of every run and the others."""
    for name, table in TABLES.items():
        for target in table.classes:
            if target not in (*HERE, *MODELLED):
                continue
            usual = table.usual(target)
            others = tuple(case for case in table.cases if case not in usual)
            for cases in (usual, others):
                parts = (cases[at : at + PER_UNIT] for at in range(0, len(cases), PER_UNIT))
                yield from (Unit(name, part, target, cases is usual) for part in parts)
