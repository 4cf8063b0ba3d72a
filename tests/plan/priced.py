"""Plans and prices of small graphs, for one machine class, without a build around them."""

from __future__ import annotations

from dataclasses import replace
from functools import cache

import onnx

from onnxfuse.config import Options
from onnxfuse.cost import cost_of, handing_on
from onnxfuse.cost.runtime import node_seconds
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.ir.group import Group, Plan
from onnxfuse.ir.kernel import Kernel
from onnxfuse.load import load, simplify_shapes
from onnxfuse.lower import lower
from onnxfuse.ops.rows import ROWS
from onnxfuse.plan import plan
from onnxfuse.plan.legality import CPU
from onnxfuse.plan.planner import predicted
from onnxfuse.plan.price import Costing, PriceMemo, Seconds
from onnxfuse.rewrite import rewrite
from onnxfuse.schedule.cpu.scheduler import schedule
from onnxfuse.target import CPUS

TARGET = CPUS["x86-64-v3"]
LEGALITY = replace(CPU, targets=lambda archs: (TARGET,))
HEAD = '<ir_version: 8, opset_import: ["": 17]>'


def costing(budget: int = 100_000) -> Costing:
    """Prices on one core and on two."""
    machines = (replace(TARGET, cores=1), TARGET)
    return Costing(kernel, machines, 1, cost_of, node_seconds, handing_on, PriceMemo(budget))


def kernel(group: Group, made: Plan) -> Kernel | Decision:
    """The kernel of a group."""
    lowered = lower(group, made, ROWS)
    if isinstance(lowered, Decision):
        return lowered
    layouts = {v: made.layouts[v] for v in (*lowered.inputs, *lowered.outputs) if v in made.layouts}
    return schedule(lowered, layouts, made.graph.constants, TARGET, winograd=True)


def graph_of(data: bytes) -> Graph:
    """A model as it is planned: without shape arithmetic, rewritten."""
    return rewrite(simplify_shapes(load(data, Options())), Options())[0]


def parsed(text: str) -> Graph:
    """A graph in ONNX's text form, as it is written there."""
    return load(onnx.parser.parse_model(f"{HEAD} g {text}").SerializeToString(), Options())


def planned(graph: Graph, strategy: str, prices: Costing | None = None, *, least: int = 1) -> Plan:
    """The plan of a strategy, lone operators being kernels too."""
    options = Options(strategy=strategy, min_group=least)
    return plan(graph, ROWS, options, legality=LEGALITY, costing=prices or costing())


def groups(text: str, strategy: str, prices: Costing | None = None) -> list[str]:
    """The operators of each group of a graph, groups in order."""
    return [" ".join(n.op for n in g.nodes) for g in planned(parsed(text), strategy, prices).groups]


def seconds(made: Plan, prices: Costing) -> Seconds:
    """What a plan is predicted to take."""
    found = predicted(made, Options(), LEGALITY, prices)
    assert found is not None
    return found


@cache
def network_graph(name: str) -> Graph:
    """A small network as it is planned."""
    from models.networks import network  # noqa: PLC0415  tests that need no network do not build the table

    return graph_of(network(name).build().SerializeToString())
