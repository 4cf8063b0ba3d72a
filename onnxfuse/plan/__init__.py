"""Graph to plan: which nodes may be fused, the groups that a strategy forms, and every refusal with its reason.

A legal group is free of cycles; its schedule (phases, stages, tiles) is decided later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import replace

from onnxfuse.config import SEARCHES, Options, strategy_of
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.group import Plan
from onnxfuse.ops.spec import OperatorTable
from onnxfuse.plan.constant_nodes import computed_once
from onnxfuse.plan.integers import integer_nodes, with_own_decoders
from onnxfuse.plan.kinds import Kind, decoded_weights, kind_of
from onnxfuse.plan.legality import CPU, Legality
from onnxfuse.plan.planner import Planner
from onnxfuse.plan.price import Costing
from onnxfuse.plan.refusals import known_beforehand
from onnxfuse.plan.search.ties import coded_functions
from onnxfuse.plan.storage_types import storage_types_of
from onnxfuse.target import Target


def plan(
    graph: Graph,
    rows: OperatorTable,
    options: Options,
    forbidden: frozenset[str] = frozenset(),
    legality: Legality[Target] = CPU,
    costing: Costing | None = None,
    grouping: Iterable[tuple[str, ...]] | None = None,
    kept: Plan | None = None,
) -> Plan:
    """The plan of a graph under the legality of a backend. Nodes named in `forbidden` stay with the runtime.

    `costing` gives the prices for strategies that use them. With a `grouping`, node names of groups decided earlier,
    these groups are formed and no strategy runs. Nor does one where an earlier plan of the graph is `kept`, less the
    groups that hold a node which is forbidden now.
    """
    graph = legality.prepared(with_own_decoders(graph, rows))
    kinds, decisions = _kinds(graph, rows, options, forbidden, legality)
    left = _left(graph, kinds, rows, options)
    decisions.extend(left.values())
    kinds = {i: k for i, k in kinds.items() if i not in left}
    planner = Planner(graph, kinds, rows, options, legality, costing)
    made = _chosen(planner, strategy_of(options), grouping, kept)
    storage_types = storage_types_of(made.graph, made.groups, options, legality.targets(options), legality.stores)
    decisions += [*made.decisions, *known_beforehand(made.graph, forbidden)]
    return replace(made, decisions=tuple(dict.fromkeys(decisions)), storage_types=storage_types)


def _left(graph: Graph, kinds: Mapping[int, Kind], rows: OperatorTable, options: Options) -> dict[int, Decision]:
    """Refusals of nodes that the runtime computes better: more exactly, unless tolerances were given, or faster."""
    found = coded_functions(graph, kinds) if options.rtol is None and options.atol is None else {}
    if options.min_group > 1:
        found |= integer_nodes(graph, kinds, rows) | computed_once(graph, kinds)
    return found


def _chosen(planner: Planner, strategy: str, grouping: Iterable[tuple[str, ...]] | None, kept: Plan | None) -> Plan:
    if kept is not None:
        return planner.kept(kept, searched=strategy in SEARCHES)
    if grouping is not None:
        return planner.again(grouping, searched=strategy in SEARCHES)
    return planner.searched(strategy) if strategy in SEARCHES else planner.made(strategy)


def _kinds(
    graph: Graph, rows: OperatorTable, options: Options, forbidden: frozenset[str], legality: Legality[Target]
) -> tuple[dict[int, Kind], list[Decision]]:
    """The kind of each node that may be fused, by position, and refusals of the others."""
    skip = [re.compile(r) for r in options.skip_node]
    kinds: dict[int, Kind] = {}
    decisions: list[Decision] = []
    weights = decoded_weights(graph, rows)
    for i, n in enumerate(graph.nodes):
        if n.name in forbidden:
            continue
        kind: Kind | Decision = kind_of(graph, n, rows, weights)
        if any(r.search(n.name) for r in skip):
            kind = Decision("E-KEEP", (n.name,), f"{n.name} matches --skip-node", "leave out that --skip-node")
        if isinstance(kind, Decision):
            decisions.append(kind)
        elif not all(o in graph.known for o in n.outputs if o):
            kinds[i] = kind
    refused = legality.refused(graph, kinds, legality.targets(options)[0])
    return {i: k for i, k in kinds.items() if i not in refused}, [*decisions, *refused.values()]
