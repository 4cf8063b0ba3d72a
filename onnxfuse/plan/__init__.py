"""Graph to plan: which nodes may be fused, the groups that a strategy makes of them, and every refusal with its reason.

Legality is freedom from cycles; what a group becomes (phases, stages, tiles) is decided later.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from onnxfuse.config import BEST, USUAL, Options
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.group import Plan
from onnxfuse.ops.spec import Table
from onnxfuse.plan.integers import integer_nodes, with_own_decoders
from onnxfuse.plan.kinds import Kind, decoded_weights, kind_of
from onnxfuse.plan.legality import CPU, Legality
from onnxfuse.plan.once import computed_once
from onnxfuse.plan.planner import Planner
from onnxfuse.plan.price import Costing
from onnxfuse.plan.refusals import known_beforehand
from onnxfuse.plan.search.ties import coded_functions
from onnxfuse.plan.storage_types import held_in


def plan(
    graph: Graph,
    rows: Table,
    options: Options,
    forbidden: frozenset[str] = frozenset(),
    legality: Legality = CPU,
    costing: Costing | None = None,
    grouping: Iterable[tuple[str, ...]] | None = None,
) -> Plan:
    """Groups of a graph, as a backend wants them. Nodes named in `forbidden` stay with the runtime.

    Strategies that ask for prices get those of `costing`. Where a `grouping` was decided before, by names of nodes, it
    is done again and no strategy is asked.
    """
    graph = with_own_decoders(graph, rows)
    kinds, decisions = _kinds(graph, rows, options, forbidden, legality)
    theirs = coded_functions(graph, kinds) | integer_nodes(graph, kinds, rows) | computed_once(graph, kinds)
    decisions.extend(theirs.values())
    kinds = {i: k for i, k in kinds.items() if i not in theirs}
    planner = Planner(graph, kinds, rows, options, legality, costing)
    made = _chosen(planner, options.strategy or USUAL, grouping)
    held = held_in(made.graph, made.groups, options, legality.targets(options), legality.stores)
    decisions += [*made.decisions, *known_beforehand(made.graph, forbidden)]
    return replace(made, decisions=tuple(decisions), held=held)


def _chosen(planner: Planner, strategy: str, grouping: Iterable[tuple[str, ...]] | None) -> Plan:
    if grouping is not None:
        return planner.again(grouping)
    return planner.best() if strategy == BEST else planner.made(strategy)


def _kinds(
    graph: Graph, rows: Table, options: Options, forbidden: frozenset[str], legality: Legality
) -> tuple[dict[int, Kind], list[Decision]]:
    """The kind of each node that may be fused, and why the others may not."""
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
