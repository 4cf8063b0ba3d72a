"""The graphs that a page draws: the loaded model, and the model with kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

INPUT, OUTPUT = "input", "output"  # operators of the nodes drawn for inputs and outputs of the model


@dataclass(frozen=True, slots=True)
class Drawn:
    """A node of a drawn graph; `kernel` is the name of the fused node that computes it, None if the runtime does.

    Figures are of one run, None for symbolic sizes: `flops`; `bytes` read and written, weights included; and `held`,
    the bytes of all values that are live after the node.
    """

    name: str
    op: str
    kernel: str | None = None
    layer: str = ""  # of the model, derived from node names
    flops: int | None = None
    bytes: int | None = None
    live_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes in topological order, and edges (producer, consumer) between their indices."""

    nodes: tuple[Drawn, ...]
    edges: tuple[tuple[int, int], ...]


@dataclass(frozen=True, slots=True)
class Fired:
    """A rewrite rule, and the nodes of the loaded model at which it fired."""

    rule: str
    nodes: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Listing:
    """A kernel as its scheduled statements, and as generated C++."""

    ir: str
    code: str


@dataclass(frozen=True, slots=True)
class Drawing:
    """Both graphs, and facts about their nodes that are not in `GroupResult` and `Refusal`.

    `listings` are by operator type; `peaks` are those of the machine class, GFLOP/s and GB/s by name.
    """

    before: Picture
    after: Picture
    fired: tuple[Fired, ...] = ()
    listings: Mapping[str, Listing] = field(default_factory=dict)
    peaks: Mapping[str, float] = field(default_factory=dict)


Wired = tuple[Drawn, Sequence[str], Sequence[str]]  # with its inputs and outputs


def picture(nodes: Iterable[Wired], inputs: Sequence[str], outputs: Sequence[str]) -> Picture:
    """A graph to draw, from nodes in topological order and the inputs and outputs of the model.

    >>> picture([(Drawn("n", "Abs"), ["x"], ["y"])], ["x"], ["y"]).edges
    ((0, 1), (1, 2))
    """
    wired: list[Wired] = [(Drawn(name, INPUT), [], [name]) for name in inputs]
    wired += nodes
    wired += [(Drawn(name, OUTPUT), [name], []) for name in outputs]
    makers = {value: at for at, (_, _, made) in enumerate(wired) for value in made if value}
    edges = dict.fromkeys((makers[v], at) for at, (_, reads, _) in enumerate(wired) for v in reads if v in makers)
    return Picture(tuple(node for node, _, _ in wired), tuple(edges))
