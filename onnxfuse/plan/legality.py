"""What a backend decides about groups: in which order they are grown, and what may be in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from onnxfuse.config import Options
from onnxfuse.ir.dtype import DType
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.plan.chain import chain_refusal
from onnxfuse.plan.kinds import BATCHED, DECODING, ELEMENTWISE, MOVEMENT, REDUCTION, WEIGHTS, WINDOW, Kind
from onnxfuse.plan.own_products import own_products
from onnxfuse.plan.products import products_refused
from onnxfuse.plan.storage_types import stores
from onnxfuse.target import Gpu, gpus_of, targets_of

Members = Sequence[tuple[Sequence[str], Kind]]  # of a group: what each node makes, and its kind


def nothing_refused(graph: Graph, kinds: Mapping[int, Kind], target: Any) -> Mapping[int, Decision]:
    """Where every kind of node has a kernel."""
    return {}


def nothing_before(graph: Graph, kinds: Mapping[int, Kind], target: Any) -> Mapping[int, int]:
    """Where a product takes in no normalization."""
    return {}


def normalized_before(graph: Graph, kinds: Mapping[int, Kind], target: Gpu) -> Mapping[int, int]:
    """Normalizations whose rows a product of ours makes itself."""
    return own_products(graph, kinds, target).before


@dataclass(frozen=True, slots=True)
class Legality:
    """The planner's table of a backend, whose own `Target` the functions take.

    `targets` are those of options, best first. `chained` says why a contraction with weights does not join a
    group that holds one: it is given the graph, the group's members, operator and kind of the node, a target, and
    whether weights are held in 32 bits. `stores` says whether a target keeps values between kernels in a type.
    `refused` says why nodes have no kernel, by position, where there is none yet or the runtime's own is better.
    `before` are nodes that no group may have but that of the product behind them, by position, and that product.
    `made_again` says whether what several nodes move is made for each of them, as one more kernel costs more than that.
    """

    anchors: tuple[tuple[str, ...], ...]  # kinds of the nodes that groups are grown from, the first ones first
    most_nodes: int  # of a group
    targets: Callable[[Options], Sequence[Any]]
    chained: Callable[[Graph, Members, str, Kind, Any, bool], tuple[str, str] | None]
    stores: Callable[[DType, Any], bool]
    refused: Callable[[Graph, Mapping[int, Kind], Any], Mapping[int, Decision]] = nothing_refused
    before: Callable[[Graph, Mapping[int, Kind], Any], Mapping[int, int]] = nothing_before
    made_again: bool = False


CPU = Legality(
    anchors=((BATCHED,), (WEIGHTS,), (WINDOW,), (REDUCTION,), (ELEMENTWISE, MOVEMENT), (DECODING,)),
    most_nodes=64,
    targets=lambda options: targets_of(options.arch),
    chained=chain_refusal,
    stores=stores,
)

CUDA = Legality(
    anchors=((BATCHED,), (WEIGHTS,), (WINDOW,), (REDUCTION,), (ELEMENTWISE, MOVEMENT), (DECODING,)),
    most_nodes=64,
    targets=lambda options: gpus_of(options.arch, graph=options.cuda_graph),
    chained=lambda *_: ("E-TYPE", "a kernel can have one product with weights only"),
    stores=lambda dtype, target: False,
    refused=products_refused,
    before=normalized_before,
    made_again=True,
)
