"""The graph of a build as a page draws it: the model as it was loaded, and as it is with its kernels."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

INPUT, OUTPUT = "input", "output"  # what stands for an input or output of the model


@dataclass(frozen=True, slots=True)
class Drawn:
    """A node of a picture; `kernel` names the node of the result that computes it, None where the runtime does.

    Figures are of one run, None where sizes are symbols: `flops`, `bytes` of what it reads and makes, weights included,
    and `held`, the bytes of all values that are still to be read when it has run.
    """

    name: str
    op: str
    kernel: str | None = None
    layer: str = ""  # of the model, as names tell it
    flops: int | None = None
    bytes: int | None = None
    held: int | None = None


@dataclass(frozen=True, slots=True)
class Picture:
    """Nodes in topological order, and which of them, by number, give values to which."""

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
    """Both pictures, and what is known of their nodes beside `GroupResult` and `Refusal`.

    `listings` are by operator type, `peaks` what the machine class reaches: GFLOP/s and GB/s by name.
    """

    before: Picture
    after: Picture
    fired: tuple[Fired, ...] = ()
    listings: Mapping[str, Listing] = field(default_factory=dict)
    peaks: Mapping[str, float] = field(default_factory=dict)


Wired = tuple[Drawn, Sequence[str], Sequence[str]]  # with the values that it reads and makes


def picture(nodes: Iterable[Wired], inputs: Sequence[str], outputs: Sequence[str]) -> Picture:
    """A picture of nodes in topological order, between inputs and outputs of the model.

    >>> picture([(Drawn("n", "Abs"), ["x"], ["y"])], ["x"], ["y"]).edges
    ((0, 1), (1, 2))
    """
    wired: list[Wired] = [(Drawn(name, INPUT), [], [name]) for name in inputs]
    wired += nodes
    wired += [(Drawn(name, OUTPUT), [name], []) for name in outputs]
    makers = {value: at for at, (_, _, made) in enumerate(wired) for value in made if value}
    edges = dict.fromkeys((makers[v], at) for at, (_, reads, _) in enumerate(wired) for v in reads if v in makers)
    return Picture(tuple(node for node, _, _ in wired), tuple(edges))
