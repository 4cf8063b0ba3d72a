"""Nodes of constants alone that compute: the runtime does that once, when a model is loaded, a kernel at every run."""

from __future__ import annotations

from collections.abc import Mapping

from onnxfuse.ir.compose import computes
from onnxfuse.ir.graph import Decision, Graph
from onnxfuse.plan.kinds import DECODING, Kind


def computed_once(graph: Graph, kinds: Mapping[int, Kind]) -> dict[int, Decision]:
    """Why nodes stay whose values only depend on constants, and were too large or too long to compute for a file.

    What merely moves, repeats or casts constants costs a kernel nothing, and integer codes of weights are decoded where
    they are read: those may be fused.
    """
    known = set(graph.constants)
    found: dict[int, Decision] = {}
    for i, n in enumerate(graph.nodes):
        kind = kinds.get(i)
        if kind is None or kind.name == DECODING or not n.reads or not known.issuperset(n.reads):
            continue
        known.update(o for o in n.outputs if o)
        if any(computes(d.value) for d in kind.definitions):
            said = f"{n.op} reads constants alone, and is computed once by the runtime when it loads the model"
            found[i] = Decision("E-COST", (n.name,), said)
    return found
