"""Groups grown from anchors, the most expensive operators first; the reason why growth stops is kept as a decision.

Anchors are taken in the order batched contractions (attention), contractions with weights, windows, reductions. Each
grows forward over its consumers and backward over producers that only it reads: seed growth as in DNNFusion, but from
many-to-many operators. The remaining nodes grow from one-to-one seeds, smallest result first, as published.
"""

from __future__ import annotations

import re

from onnxfuse.ir.graph import Decision
from onnxfuse.ir.index import Index, divides, symbols_of
from onnxfuse.ir.indexing import product
from onnxfuse.plan.kinds import (
    BATCHED,
    DECODING,
    ELEMENTWISE,
    HEAVY,
    MOVEMENT,
    RECURRENT,
    REDUCTION,
    WEIGHTS,
    WINDOW,
    Kind,
    Members,
    of_whole_images,
    weight,
)
from onnxfuse.plan.layouts import channels_in
from onnxfuse.plan.search.scope import Cover, Scope
from onnxfuse.plan.search.space import Space
from onnxfuse.plan.siblings import siblings
from onnxfuse.plan.strips import crosses_tiles
from onnxfuse.plan.unlocks import cut


def anchors(space: Space) -> Cover:
    """The groups of a space, grown from anchors."""
    grower = _Grower(space.scope)
    groups = grower.run()
    members = grower.units.members
    return Cover(tuple(tuple(members[g]) for g in groups), tuple(grower.decisions))


class _Grower:
    """Grows groups over units, and keeps the reasons why growth stops as decisions."""

    def __init__(self, scope: Scope) -> None:
        options, legality, kinds = scope.options, scope.legality, scope.kinds
        self.units = units = scope.units()
        self.kinds = kinds
        self.skip = [re.compile(r) for r in options.skip_node]
        self.legality = legality
        self.target = legality.targets(options)[0]  # the best: others do as it does
        self.single = options.precision == "fp32"
        self.before = legality.before(scope.graph, kinds, self.target)
        self.taken: set[int] = set()
        self.made = {o for i in kinds for o in units.nodes[i].outputs}
        self.decisions: list[Decision] = []
        self.seen: set[tuple[str, str]] = set()

    def run(self) -> list[int]:
        """Positions of the groups' representatives."""
        order = sorted(self.kinds)
        groups: list[int] = []
        for wanted in self.legality.anchors:
            seeds = [i for i in order if self.kinds[i].name in wanted]
            if wanted[0] == ELEMENTWISE:
                seeds.sort(key=lambda i: (self.kinds[i].name == MOVEMENT, self._size(i), i))
            for i in seeds:
                if i not in self.taken and i not in self.before:
                    groups.append(self._grow(i))
        return groups

    def _size(self, i: int) -> int:
        t = self.units.graph.types.get(self.units.nodes[i].outputs[0])
        return (product(t.shape).constant or 10**6) if t is not None else 0

    def _grow(self, seed: int) -> int:
        self.taken.add(seed)
        changed = True
        while changed:
            changed = self._forward(seed) or self._backward(seed) or self._sideways(seed)
        return seed

    def _kinds(self, group: int) -> set[str]:
        return {self.kinds[m].name for m in self.units.members[group]}

    def _try(self, group: int, node: int, reason: tuple[str, ...] | None) -> bool:
        names = (self.units.nodes[self.units.members[group][0]].name, self.units.nodes[node].name)
        product_ = self.before.get(node)
        if reason is None and product_ is not None and self.units.group[product_] != group:
            reason = ("E-COST", f"{self.units.nodes[node].op} is fused into the product after it")
        if reason is None and len(self.units.members[group]) >= self.legality.most_nodes:
            reason = ("E-RESOURCE", f"a group holds at most {self.legality.most_nodes} operators")
        if reason is None and self.units.closes_cycle(group, node):
            between = [self.units.nodes[m].name for m in self.units.between(group, node)]
            reason = ("E-CYCLE", "the group would depend on itself through nodes outside", cut(between, self.skip))
        if reason is None:
            self.units.join(group, node)
            self.taken.add(node)
            return True
        if names not in self.seen:
            self.seen.add(names)
            self.decisions.append(Decision(reason[0], names, *reason[1:]))
        return False

    def _forward(self, group: int) -> bool:
        grown = False
        again = True
        while again:
            again = False
            for node in self.units.consumers(group):
                if node in self.taken or node not in self.kinds:
                    continue
                if self._try(group, node, self._forward_refusal(group, node)):
                    grown = again = True
                    break
        return grown

    def _forward_refusal(self, group: int, node: int) -> tuple[str, ...] | None:
        mine, kind = self._kinds(group), self.kinds[node]
        op = self.units.nodes[node].op
        if kind.name == WEIGHTS:
            return self.legality.chained(self.units.graph, self._members(group), op, kind, self.target, self.single)
        if kind.name == RECURRENT or (RECURRENT in mine and kind.name in (BATCHED, WINDOW, REDUCTION)):
            return ("E-TYPE", f"{op} would share a kernel with a recurrence, which computes all of its steps first")
        if kind.name == BATCHED:
            return (
                None
                if BATCHED in mine and REDUCTION in mine and self._batched(group) == kind.products == 1
                else (
                    "E-TYPE",
                    f"{op} is a second batched contraction, but not after a softmax over the rows of the first",
                )
            )
        if kind.name == WINDOW or (kind.spatial and kind.name == REDUCTION):
            if of_whole_images(kind) and self._reduction_refusal(group, node) is None:
                return None
            if kind.name == WINDOW and self._only_reader(group, node) and self._inside(node):
                made = self.units.nodes[node]
                return self.legality.windowed(
                    self.units.graph, self._members(group), made, kind, self.target, self.single
                )
            return ("E-TYPE", crosses_tiles(op))
        if kind.name == REDUCTION:
            return self._reduction_refusal(group, node)
        if kind.name == DECODING and not self._passes_through(group, node):
            return ("E-COST", f"the nodes after {op} read its quantized result directly")
        if kind.name == MOVEMENT:
            return self._movement_refusal(group, node)
        return self._numel_refusal(group, node)

    def _members(self, group: int) -> Members:
        return [(self.units.nodes[m].outputs, self.kinds[m]) for m in self.units.members[group]]

    def _only_reader(self, group: int, node: int) -> bool:
        """Whether nothing else reads what a node reads of a group."""
        units = self.units
        makers = [b for b in units.before[node] if units.group[b] == group]
        given = {o for b in makers for o in units.nodes[b].outputs} & set(units.graph.outputs)
        return not given and all(units.after[b] == [node] for b in makers)

    def _inside(self, node: int) -> bool:
        """Whether all readers of a node have kernels, so that its result need not lie as the runtime has it."""
        read_outside = set(self.units.graph.outputs).intersection(self.units.nodes[node].outputs)
        return not read_outside and all(a in self.kinds for a in self.units.after[node])

    def _sideways(self, group: int) -> bool:
        free = [i for i in siblings(self.units, self.kinds, group) if i not in self.taken]
        return any(self._try(group, i, None) for i in free)

    def _passes_through(self, group: int, node: int) -> bool:
        """Whether the quantized results of a group are dequantized for its own elementwise nodes or attention only."""
        units, attention = self.units, BATCHED in self._kinds(group)
        makers = [b for b in units.before[node] if units.group[b] == group]
        decoders = {a for b in makers for a in units.after[b]}
        kept = set(units.graph.outputs).intersection(units.nodes[node].inputs)
        if kept or (len(decoders) > 1 and not attention):
            return False
        if any(self.kinds[d].name != DECODING if d in self.kinds else True for d in decoders):
            return False
        inside = (ELEMENTWISE, REDUCTION, BATCHED) if attention else (ELEMENTWISE,)
        readers = [self.kinds.get(a) for d in decoders for a in units.after[d]]
        return len(readers) > 0 and all(k is not None and k.name in inside for k in readers)

    def _batched(self, group: int) -> int:
        return sum(self.kinds[m].products for m in self.units.members[group])

    def _reduction_refusal(self, group: int, node: int) -> tuple[str, str] | None:
        """A reduction joins if it reads whole values of the group, and is not after the second contraction."""
        n = self.units.nodes[node]
        if self._batched(group) > 1:
            return ("E-TYPE", f"{n.op} would be a reduction after both contractions of an attention")
        if WEIGHTS in self._kinds(group) and not self._channels_end(group, node) and not self._ends_with_window(group):
            return ("E-TYPE", f"{n.op} reduces across the tiles of a convolution")
        return None

    def _ends_with_window(self, group: int) -> bool:
        """Whether a group is a convolution and the window after it, whose result is stored."""
        kinds = [self.kinds[m].name for m in sorted(self.units.members[group])]
        return [k for k in kinds if k in (WEIGHTS, WINDOW, REDUCTION)] == [WEIGHTS, WINDOW]

    def _channels_end(self, group: int, node: int) -> bool:
        """Whether the inputs of a node from a convolution's group have channels last, like its scratch memory."""
        members = self.units.members[group]
        if not any(self.kinds[m].spatial for m in members):
            return True
        nodes = [self.units.nodes[m] for m in members]
        channels = channels_in(nodes, {self.units.nodes[m].name: self.kinds[m] for m in members})
        made = {o for n in nodes for o in n.outputs}
        read = [(v, self.units.graph.types.get(v)) for v in self.units.nodes[node].reads if v in made]
        return all(t is not None and channels.get(v) == len(t.shape) - 1 for v, t in read)

    def _movement_refusal(self, group: int, node: int) -> tuple[str, str] | None:
        """Movement joins its producer if it is the only reader; otherwise its readers may fuse it."""
        n = self.units.nodes[node]
        for b in self.units.before[node]:
            again = self.kinds[node].keeps_order or not self.units.reads[b]  # values without inputs are recomputed
            made = self.kinds[b].name in (ELEMENTWISE, MOVEMENT) if b in self.kinds else False
            again = again or (self.legality.made_again and (made or self._for_the_runtime(node)))
            if self.units.group[b] == group and len(self.units.after[b]) > 1 and not again:
                return ("E-FANOUT", f"the input of {n.op} has other readers")
        if len([o for o in n.outputs if o]) > 1 and self._kinds(group) & {WEIGHTS, BATCHED, RECURRENT}:
            return ("E-FANOUT", f"{n.op} has several results, and is fused into their readers instead")
        after = self.units.after[node]  # one of several contractions cannot take it, since the others read it too
        if len(after) == 1 and after[0] in self.kinds and self.kinds[after[0]].name == BATCHED:
            return ("E-FANOUT", f"{n.op} is fused into the contraction after it, which reads its input in any order")
        if self.units.after[node] and self._hides_extents(node):
            return ("E-COST", f"{n.op} merges symbolic dimensions that nodes after it may need separately")
        return self._numel_refusal(group, node)

    def _for_the_runtime(self, node: int) -> bool:
        """Whether none of a node's readers, behind nodes that keep the order, may be in a group."""
        after = self.units.after[node]
        return all(self._for_the_runtime(a) if self._is_view(a) else a not in self.kinds for a in after)

    def _is_view(self, node: int) -> bool:
        return node in self.kinds and self.kinds[node].name == MOVEMENT and self.kinds[node].keeps_order

    def _hides_extents(self, node: int) -> bool:
        """Whether a node merges symbolic dimensions: an extent of its result is a product of symbols of its inputs."""
        n = self.units.nodes[node]
        have, want = (self.units.graph.types.get(v) for v in (n.inputs[0], n.outputs[0]))
        if have is None or want is None:
            return False
        return any(len(symbols_of(Index(((m, 1),)))) > 1 for e in want.shape if e not in have.shape for m, _ in e.terms)

    def _numel_refusal(self, group: int, node: int) -> tuple[str, str] | None:
        """An elementwise node joins if it has as many elements as its input, so that nothing is recomputed."""
        graph, n = self.units.graph, self.units.nodes[node]
        out = graph.types[n.outputs[0]]
        made = {o for m in self.units.members[group] for o in self.units.nodes[m].outputs}
        sizes = [product(t.shape) for i in n.inputs if i in made and (t := graph.types.get(i)) is not None]
        assert out is not None
        if self._kinds(group) & {*HEAVY} and product(out.shape) not in sizes:
            return ("E-NUMEL", f"{n.op} has another number of elements than its input from the group")
        return None

    def _backward(self, group: int) -> bool:
        grown = False
        again = True
        while again:
            again = False
            for node in self.units.producers(group):
                if node in self.taken or node not in self.kinds:
                    continue
                if self._try(group, node, self._backward_refusal(group, node)):
                    grown = again = True
                    break
        return grown

    def _backward_refusal(self, group: int, node: int) -> tuple[str, ...] | None:
        kind, n = self.kinds[node], self.units.nodes[node]
        if node in self.before:
            return None
        if kind.name not in (ELEMENTWISE, MOVEMENT, DECODING):
            return ("E-TYPE", f"{n.op} is not elementwise")
        if not self._stored_on_the_way(group, node):
            if any(self.units.group[a] != group for a in self.units.after[node]):
                return ("E-FANOUT", f"the result of {n.op} has other readers")
            given = next((o for o in n.outputs if o in self.units.graph.outputs), None)
            if given is not None:
                said = f"the result of {n.op} is an output of the model"
                return ("E-FANOUT", said, f"remove {given} from the outputs of the model")
        if self._follows_contraction(node):
            return ("E-COST", f"{n.op} is fused into the contraction before it")
        again = kind.name == ELEMENTWISE and not self._before_window(group, kind)
        if again and self._multiplied(group, node):
            return ("E-COST", f"{n.op} would be recomputed for every panel of weights")
        if again and self._kinds(group) & {WEIGHTS, WINDOW} and self._reads_plain(group, node):
            return ("E-COST", f"the input image of {n.op} would be read channel by channel, with a stride")
        if kind.keeps_order and self._shapes_image(group, node):
            return ("E-COST", f"{n.op} is fused into the reduction before it, which stores the image channels last")
        told_apart = kind.joins and not self.legality.made_again
        if told_apart and REDUCTION in self._kinds(group) and self._of_images(group, node):
            return ("E-COST", f"every load would have to select the input of {n.op} that its element comes from")
        if kind.name == ELEMENTWISE and BATCHED in self._kinds(group) and self._shared_mask(group, node):
            return ("E-COST", f"{n.op} would be recomputed for every head")
        return None

    def _before_window(self, group: int, kind: Kind) -> bool:
        """Whether a node is so cheap that a window of the group computes it for each element that it loads."""
        return WEIGHTS not in self._kinds(group) and weight(kind) <= self.legality.before_windows

    def _multiplied(self, group: int, node: int) -> bool:
        """Whether a contraction or window of a group reads the result of a node repeatedly, directly or indirectly."""
        pending, seen = [node], {node}
        while pending:
            inside = [a for a in self.units.after[pending.pop()] if self.units.group[a] == group and a not in seen]
            if any(self.kinds[a].name in (WEIGHTS, WINDOW, RECURRENT) and not self._reduces_images(a) for a in inside):
                return True
            seen.update(inside)
            pending.extend(inside)
        return False

    def _reduces_images(self, node: int) -> bool:
        """Whether a node is a pool over whole images: it reads each element once, in the order of memory."""
        t = self.units.graph.types.get(self.units.nodes[node].outputs[0])
        return self.kinds[node].images == "pool" and t is not None and product(t.shape[2:]).constant == 1

    def _reads_plain(self, group: int, node: int) -> bool:
        """Whether a node reads an image in the runtime's layout: a model input, or a result of the runtime."""
        graph, n = self.units.graph, self.units.nodes[node]
        if not any(self.kinds[m].spatial and not self._reduces_images(m) for m in self.units.members[group]):
            return False
        others = [v for v in n.inputs if v and v not in graph.constants and v not in self.made]
        return any((t := graph.types.get(v)) is None or len(t.shape) > 2 for v in others)

    def _follows_contraction(self, node: int) -> bool:
        """Whether an input of a node comes from a contraction without a group, possibly through elementwise nodes.

        Movement of a value with other readers is not fused into the contraction, but into its readers.
        """
        between = (ELEMENTWISE, DECODING) if self.kinds[node].name == ELEMENTWISE else ()
        shared = self.kinds[node].name == MOVEMENT and not self.kinds[node].keeps_order
        seen, pending = set[int](), [node]
        while pending:
            free = [b for b in self.units.before[pending.pop()] if b in self.kinds and b not in self.taken]
            free = [b for b in free if not shared or len(self.units.after[b]) == 1]
            if any(self.kinds[b].name in HEAVY for b in free):
                return True
            pending.extend(b for b in free if self.kinds[b].name in between and b not in seen)
            seen.update(free)
        return False

    def _stored_on_the_way(self, group: int, node: int) -> bool:
        """Whether a reduction over rows can store a value that others read as well, so that nothing is recomputed."""
        rows = REDUCTION in self._kinds(group) and not self._kinds(group) & {*HEAVY}
        return rows and self.kinds[node].name == ELEMENTWISE and self._size(node) == self._largest(group)

    def _largest(self, group: int) -> int:
        """Number of elements of the largest value of a group."""
        return max(self._size(m) for m in self.units.members[group])

    def _shapes_image(self, group: int, node: int) -> bool:
        """Whether a node makes an image for a group from a reduction over another shape."""
        reduced = any(
            self.kinds[b].name == REDUCTION and b not in self.taken for b in self.units.before[node] if b in self.kinds
        )
        return reduced and any(self.kinds[m].spatial for m in self.units.members[group])

    def _of_images(self, group: int, node: int) -> bool:
        """Whether a group reads the image that a node makes, and is no contraction and no window."""
        made = self.units.graph.types[self.units.nodes[node].outputs[0]]
        return made is not None and len(made.shape) > 3 and not self._kinds(group) - {REDUCTION, ELEMENTWISE, MOVEMENT}

    def _shared_mask(self, group: int, node: int) -> bool:
        """Whether a producer is much smaller than the group's largest value: then it is cheaper computed once.

        Sizes with symbols are compared where one is a known multiple of the other.
        """
        graph = self.units.graph
        t = graph.types[self.units.nodes[node].outputs[0]]
        if t is None:
            return False
        size = product(t.shape)
        if size.constant is not None:
            return size.constant * 4 <= self._largest(group)
        others = (graph.types.get(self.units.nodes[m].outputs[0]) for m in self.units.members[group])
        times = (divides(size, product(other.shape)) for other in others if other is not None)
        return any(q is not None and (q.constant or 0) >= 4 for q in times)
