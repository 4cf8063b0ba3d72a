"""The rewrite engine: rules are applied until none of them lowers the measure (`measure.py`).

A rewrite fires only where it lowers cost, then the number of nodes, then the distance from the canonical form, or
removes an operator without a row. So rewriting terminates, and no two rules can undo each other.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass, replace
from heapq import heappop, heappush

from onnxfuse.config import Options
from onnxfuse.errors import OnnxFuseError, UsageError
from onnxfuse.ir.graph import Decision, Graph, Node
from onnxfuse.ops.spec import REPORT
from onnxfuse.rewrite import (
    affine,
    cleanup,
    clips,
    inverses,
    linear,
    masks,
    merge,
    movement,
    padding,
    qlinear,
    quantization,
    scale,
    selection,
    spectrum,
)
from onnxfuse.rewrite.algebra import RULES
from onnxfuse.rewrite.draft import Draft, origins
from onnxfuse.rewrite.idioms import idiom_of, may_belong
from onnxfuse.rewrite.learned import features
from onnxfuse.rewrite.measure import Measure
from onnxfuse.rewrite.mutable_graph import Miss, MutableGraph, NoMatch
from onnxfuse.rewrite.scatters import assignments
from onnxfuse.rewrite.steps import StructuralRule

# Tiers are tried in order at each node; within one, the rewrite that lowers the measure most is taken.
_ALGEBRA: tuple[StructuralRule, ...] = (
    *padding.STEPS,
    *affine.STEPS,
    *scale.STEPS,
    *linear.STEPS,
    *clips.STEPS,
    *(r.step() for r in RULES),
)
_LOCAL: tuple[tuple[StructuralRule, ...], ...] = (
    *((s,) for s in cleanup.STEPS),
    spectrum.STEPS,
    features.STEPS,
    movement.STEPS,
    inverses.STEPS,
    selection.STEPS,
    assignments.STEPS,
    quantization.STEPS,
    qlinear.STEPS,
    masks.STEPS,
    _ALGEBRA,
)
_LATE: tuple[tuple[StructuralRule, ...], ...] = (merge.STEPS,)  # last, since merged branches no longer match

STEPS: tuple[StructuralRule, ...] = tuple(s for tier in (*_LOCAL, *_LATE) for s in tier)

_KEEPS_IDIOMS = frozenset(s.name for s in _ALGEBRA)
_FIRINGS_PER_NODE = 16


@dataclass(frozen=True, slots=True)
class Firing:
    """A rule, the nodes at which it fired (by the names they had in the loaded model), and how often."""

    rule: str
    nodes: tuple[str, ...]
    count: int


@dataclass(frozen=True, slots=True)
class Selected:
    """The enabled steps, and the names of those that may assume what they cannot prove."""

    local: tuple[tuple[StructuralRule, ...], ...]
    late: tuple[tuple[StructuralRule, ...], ...]
    trusted: frozenset[str]


def select(options: Options) -> Selected:
    """The steps that are enabled by options. Raises UsageError for a name that no step has."""
    names = [s.name for s in STEPS]
    for name in (*options.enable, *options.disable):
        if name not in names:
            near = ", ".join(difflib.get_close_matches(name, names, 3))
            raise UsageError(f"rewrite: there is no rule {name}", hint=f"near: {near}" if near else "see --list-passes")
    off = set(options.disable)
    local, late = (tuple(tuple(s for s in tier if s.name not in off) for tier in tiers) for tiers in (_LOCAL, _LATE))
    trusted = frozenset(names) if options.fast_math else frozenset(options.enable)
    return Selected(local, late, trusted)


class Broken(Exception):
    """A bug in the step `name` that left a half-changed graph."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.name = name


def rewrite(graph: Graph, options: Options, bugs: list[Decision] | None = None) -> tuple[Graph, tuple[Firing, ...]]:
    """The graph after all enabled rewrites, and the firings in the order of each rule's first one.

    The result has the same inputs and outputs with the same types. Nodes that replace others name them in `origin`.
    With `bugs`, an exception in a step disables that step, at that node or entirely, and is appended to the list as an
    E-INTERNAL decision; otherwise it is raised.
    """
    chosen = select(options)
    if graph.opset == 0:  # an opset without rows
        return graph, ()
    while True:
        try:
            return _rewritten(graph, chosen, bugs)
        except Broken as broken:
            if bugs is None:
                raise
            bugs.append(_bug(broken.name, "", broken.__cause__ or broken))
            local, late = (tuple(_without(t, broken.name) for t in part) for part in (chosen.local, chosen.late))
            chosen = replace(chosen, local=local, late=late)
        except Exception as problem:
            if bugs is None:
                raise
            bugs.append(_bug("all rules", "", problem))
            return graph, ()


def _without(tier: tuple[StructuralRule, ...], name: str) -> tuple[StructuralRule, ...]:
    return tuple(s for s in tier if s.name != name)


def _bug(step: str, node: str, problem: BaseException) -> Decision:
    said = " ".join(f"{type(problem).__name__} {problem}".split())
    return Decision("E-INTERNAL", (node,) if node else (), f"rewrite: {step}: {said}", REPORT)


def _rewritten(graph: Graph, chosen: Selected, bugs: list[Decision] | None) -> tuple[Graph, tuple[Firing, ...]]:
    work = MutableGraph(graph)
    fired: dict[str, list[str]] = {}
    _merge_constants(work)
    _drop_unread(work)
    while _run(work, chosen.local, chosen.trusted, fired, bugs) | _run(work, chosen.late, chosen.trusted, fired, bugs):
        pass
    result = work.freeze()
    _check(graph, result, fired)
    return result, tuple(Firing(name, tuple(dict.fromkeys(nodes)), len(nodes)) for name, nodes in fired.items())


def explain(graph: Graph, node: str, options: Options, *, near: bool = False) -> tuple[tuple[str, str], ...]:
    """Every rule for a node's operator, with the reason why it does not fire there ("" where it does).

    With `near` only those that fire, or that match but fail in a condition.
    """
    chosen, work = select(options), MutableGraph(graph)
    found: list[tuple[str, str]] = []
    for at in [k for k, n in work.nodes.items() if n.name == node]:
        for step in (s for tier in (*chosen.local, *chosen.late) for s in tier):
            if not step.ops or work.nodes[at].key in step.ops:
                try:
                    propose(work, step, at, step.name in chosen.trusted)
                    found.append((step.name, ""))
                except Miss as miss:
                    if not (near and isinstance(miss, NoMatch)):
                        found.append((step.name, str(miss)))
    return tuple(found)


def propose(work: MutableGraph, step: StructuralRule, at: int, trust: bool) -> tuple[Measure, Draft]:
    """The rewrite of a step at a node, and by how much it lowers the measure. Raises Miss with the reason for none."""
    draft = step.attempt(work, at, trust).settled()
    gain = draft.gain()
    if not gain > Measure() and not draft.opaque:  # the cost of an opaque operator is unknown; no step adds one
        raise Miss("the rewrite would not lower the cost")
    if step.name in _KEEPS_IDIOMS:
        for dead in draft.dead():
            if may_belong(work, dead) and (name := idiom_of(work, dead)):
                raise Miss(f"{work.nodes[dead].name} is part of a chain that ONNX Runtime fuses as {name}")
    return gain, draft


def _run(
    work: MutableGraph,
    tiers: tuple[tuple[StructuralRule, ...], ...],
    trusted: frozenset[str],
    fired: dict[str, list[str]],
    bugs: list[Decision] | None,
) -> bool:
    """Rewrite to a fixed point; whether anything fired. The last pass visits all nodes without a firing."""
    any_fired = False
    while True:
        queue = [(work.place[at], at) for at in work.nodes]
        queue.sort()
        waiting = set(work.nodes)
        fired_now = False
        while queue:
            at = heappop(queue)[1]
            waiting.discard(at)
            if at not in work.nodes:
                continue
            work.retype(at)
            best = _best(work, at, tiers, trusted, bugs)
            if best is None:
                continue
            name, draft = best
            fired.setdefault(name, []).append(_label(work.nodes[at]))
            fired_now = True
            for touched in _committed(work, name, draft):
                if touched in work.nodes and touched not in waiting:
                    waiting.add(touched)
                    heappush(queue, (work.place[touched], touched))
        any_fired |= fired_now
        if not fired_now:
            return any_fired


def _committed(work: MutableGraph, name: str, draft: Draft) -> list[int]:
    """The result of `commit`. Raises Broken where it fails."""
    try:
        return commit(work, draft)
    except Exception as problem:
        raise Broken(name) from problem


def _label(node: Node) -> str:
    return node.origin[0] if node.origin else node.name or node.outputs[0]


def _best(
    work: MutableGraph,
    at: int,
    tiers: tuple[tuple[StructuralRule, ...], ...],
    trusted: frozenset[str],
    bugs: list[Decision] | None,
) -> tuple[str, Draft] | None:
    op = work.nodes[at].key
    for tier in tiers:
        found: list[tuple[Measure, str, Draft]] = []
        for step in tier:
            if step.ops and op not in step.ops:
                continue
            try:
                gain, draft = propose(work, step, at, step.name in trusted)
            except Miss:
                continue
            except Exception as problem:
                if bugs is None:
                    raise
                bugs.append(_bug(step.name, _label(work.nodes[at]), problem))
                continue
            found.append((gain, step.name, draft))
        if found:
            _, name, draft = max(found, key=lambda f: f[0])  # the first of equals
            return name, draft
    return None


def commit(work: MutableGraph, draft: Draft) -> list[int]:
    """Apply a settled draft; the nodes whose inputs or readers changed."""
    dead, root = draft.dead(), work.nodes[draft.root]
    stands_for = origins(work, draft, dead)
    first = tuple(_label(work.nodes[at]) for at in dead[:1])
    freed = [v for at in dead for v in work.remove(at).reads]
    touched: list[int] = []
    for old, new in draft.swaps:
        if new != old and old not in work.pinned:
            touched.extend(work.redirect(old, new))
    for name, constant in (*draft.constants.items(), *draft.becomes.items()):
        work.set_constant(name, constant)
        touched.extend(work.users.get(name, ()))
    heirs = [k for k, n in enumerate(draft.nodes) if set(n.outputs) & set(root.outputs)]
    for k, (node, origin) in enumerate(zip(draft.nodes, stands_for, strict=True)):
        # the last maker of a value of the root takes the root's name, others get derived names
        name = root.name if k in heirs[-1:] else work.unused_name(f"{_label(root)}/{node.op}")
        made = Node(node.op, node.inputs, node.outputs, node.attrs, name, node.domain, origin=first)
        for o in made.outputs:
            work.types[o] = work.types.get(o) or draft.types.get(o)
        touched.append(work.add(made, beside=draft.root))
        work.origins[touched[-1]] = origin
        touched.extend(k for o in made.outputs for k in work.users.get(o, ()))
    for old, new in draft.swaps:
        if new != old and old in work.pinned:
            touched.extend(work.rename(new, old))
    for v in freed:  # a value that lost readers may now have a single one, or an optional output none
        if v in work.maker and len(work.users.get(v, ())) <= 1:
            touched.extend((work.maker[v], *work.users.get(v, ())))
    return list(dict.fromkeys(touched))


def _merge_constants(work: MutableGraph) -> None:
    """Small constants with the same content become the first of them."""
    for name, constant in list(work.constants.items()):
        first = work.same_constant(name, constant)
        if first != name and name not in work.pinned:
            work.redirect(name, first)


def _drop_unread(work: MutableGraph) -> None:
    """Dead code elimination before the first rewrite; later dead nodes are removed by `commit`."""
    for at in sorted(work.nodes, key=lambda k: work.place[k], reverse=True):
        if not any(work.users.get(o) or o in work.pinned for o in work.nodes[at].outputs if o):
            work.remove(at)


def _check(before: Graph, after: Graph, fired: dict[str, list[str]]) -> None:
    """The postconditions of rewriting. Raises OnnxFuseError, since a violation is a bug of a rule."""
    after.verify()
    if (before.inputs, before.outputs) != (after.inputs, after.outputs):
        raise OnnxFuseError("rewrite: the inputs or outputs changed")
    for o in before.outputs:
        if before.types.get(o) not in (after.types.get(o), None):
            raise OnnxFuseError(f"rewrite: {o} was {before.types.get(o)!r} and is {after.types.get(o)!r}")
    limit = _FIRINGS_PER_NODE * (len(before.nodes) + 8)
    for name, nodes in fired.items():
        if len(nodes) > limit:
            raise OnnxFuseError(f"rewrite: {name} fired {len(nodes)} times", hint=f"--disable {name} avoids it")
