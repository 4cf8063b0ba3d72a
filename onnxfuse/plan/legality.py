"""A backend's rules for groups: the order in which they are grown, and what may be in one kernel."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from onnxfuse.config import Options
from onnxfuse.ir.dtype import F16, DType
from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.plan.chain import chain_refusal
from onnxfuse.plan.generated_products import own_products
from onnxfuse.plan.kinds import (
    BATCHED,
    DECODING,
    ELEMENTWISE,
    MOVEMENT,
    RECURRENT,
    REDUCTION,
    WEIGHTS,
    WINDOW,
    Kind,
    Members,
)
from onnxfuse.plan.prepared import prepared
from onnxfuse.plan.products import products_refused
from onnxfuse.plan.storage_types import stores
from onnxfuse.plan.strips import crosses_tiles, follows_window, window_refusal
from onnxfuse.target import Cpu, Gpu, Target, gpus_of, targets_of

CHEAP = 4.0  # as Clip, Add and Relu are: less than the kernel that is saved

T_co = TypeVar("T_co", bound=Target, covariant=True)


def as_it_is(graph: Graph) -> Graph:
    """The graph, in which nothing is to be prepared."""
    return graph


def nothing_refused(graph: Graph, kinds: Mapping[int, Kind], target: Target) -> Mapping[int, Decision]:
    """No refusals: every kind of node has a kernel."""
    return {}


def nothing_before(graph: Graph, kinds: Mapping[int, Kind], target: Target) -> Mapping[int, int]:
    """No fusion of normalizations into the product after them."""
    return {}


def nothing_wins(kind: Kind) -> bool:
    """Whether a kernel has to be predicted faster: none has to."""
    return False


def convolves(kind: Kind) -> bool:
    """Whether a node is a convolution, for which the runtime has a library's kernels."""
    return kind.images == "convolution"


def normalized_before(graph: Graph, kinds: Mapping[int, Kind], target: Gpu) -> Mapping[int, int]:
    """Normalizations that are fused into the product after them, by position, with that product."""
    return own_products(graph, kinds, target).before


@dataclass(frozen=True, slots=True)
class Legality(Generic[T_co]):
    """The planner's settings of a backend; its functions take targets that `targets` gave.

    `targets` gives the targets of options, best first. `chained` gives code and reason why a contraction with
    weights does not join a group that has one, from the graph, the group's members, operator and kind of the node,
    a target, and whether weights are stored as float32; `windowed` the same of a window. `stores` says whether a
    target stores values between kernels in a type. `refused` gives refusals of nodes without a kernel, or with a
    better one in the runtime, by position. `before` maps nodes that may only be in the group of the product after
    them to that product. `prepared` gives the graph that is planned, in which some nodes may be several of the same
    meaning. `wins` says of which nodes no kernel is built that is predicted to take longer than the runtime's.
    `made_again`: movement with several readers is recomputed for each of them, and stored beside its input for the
    runtime's nodes, since a kernel for it would cost more. `before_windows` is the most that an elementwise node before
    a window may cost for each element (`cost`) to be in its group; it is computed again where windows overlap.
    `widened` are types of which values between operators of a group are float32.
    """

    anchors: tuple[tuple[str, ...], ...]  # kinds of the nodes that groups are grown from, in this order
    most_nodes: int  # of a group
    targets: Callable[[Options], Sequence[T_co]]
    chained: Callable[[Graph, Members, str, Kind, T_co, bool], tuple[str, str] | None]
    windowed: Callable[[Graph, Members, Node, Kind, T_co, bool], tuple[str, str] | None]
    stores: Callable[[DType, T_co], bool]
    refused: Callable[[Graph, Mapping[int, Kind], T_co], Mapping[int, Decision]] = nothing_refused
    before: Callable[[Graph, Mapping[int, Kind], T_co], Mapping[int, int]] = nothing_before
    prepared: Callable[[Graph], Graph] = as_it_is
    wins: Callable[[Kind], bool] = nothing_wins
    made_again: bool = False
    before_windows: float = 0.0
    widened: tuple[DType, ...] = ()


def _chained(graph: Graph, members: Members, op: str, kind: Kind, target: Cpu, single: bool) -> tuple[str, str] | None:
    """Why a contraction does not join a group, by blocks of rows or by strips of lines."""
    if single and follows_window(graph, members, kind, target):
        return None
    return chain_refusal(graph, members, op, kind, target, single)


CPU: Legality[Cpu] = Legality(
    anchors=((BATCHED,), (RECURRENT,), (WEIGHTS,), (WINDOW,), (REDUCTION,), (ELEMENTWISE, MOVEMENT), (DECODING,)),
    most_nodes=64,
    targets=lambda options: targets_of(options.arch),
    chained=_chained,
    windowed=window_refusal,
    stores=stores,
    widened=(F16,),
)

CUDA: Legality[Gpu] = Legality(
    anchors=((BATCHED,), (WEIGHTS,), (WINDOW,), (REDUCTION,), (ELEMENTWISE, MOVEMENT), (DECODING,)),
    most_nodes=64,
    targets=lambda options: gpus_of(options.arch, graph=options.cuda_graph),
    chained=lambda *_: ("E-TYPE", "a kernel can have one product with weights only"),
    windowed=lambda _graph, _members, node, *_: ("E-TYPE", crosses_tiles(node.op)),
    stores=lambda dtype, target: False,
    refused=products_refused,
    before=normalized_before,
    prepared=prepared,
    wins=convolves,
    made_again=True,
    before_windows=CHEAP,
)
