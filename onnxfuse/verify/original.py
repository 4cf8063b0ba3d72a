"""The original model as the reference: its outputs, its distance from itself, and its float64 evaluation."""

from __future__ import annotations

import math
import pickle
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto, TensorProto, numpy_helper
from onnxruntime import InferenceSession

from onnxfuse.errors import DeviceError
from onnxfuse.runtime import engine, feeds
from onnxfuse.runtime.graphs import written_nodes
from onnxfuse.runtime.memory import LoadCost, Watch
from onnxfuse.runtime.provider import CPU, Provider
from onnxfuse.verify import codes, compare, scales, trial, truth
from onnxfuse.verify.compare import Results
from onnxfuse.verify.trial import Values
from onnxfuse.verify.verdicts import ORIGINAL

BOUND = "a bound by types and depth"  # the evaluator where there is none
# Relative perturbation of weights and inputs: the least by which a kernel may differ from its body.
PERTURBATION = compare.group_bound(np.dtype(np.float32), 1)
_DRAWS = 8  # perturbations at most; further ones are drawn only while a run exceeds the limits that they give
_LARGER = 6  # further ones, each twice as large, where the run exceeds them on some inputs only
_MIN_PERTURBED_ELEMENTS = 64  # smaller weights are scales and stay


@dataclass(frozen=True, slots=True)
class Float64Errors:
    """Errors of one run against float64: by output, error and limit on the set with the largest ratio of the two."""

    evaluator: str
    errors: list[float]
    limits: list[float]

    @property
    def passed(self) -> bool:
        """Whether no error is above its limit."""
        return all(error <= most for error, most in zip(self.errors, self.limits, strict=True))


@dataclass(slots=True)
class Original:
    """The original's outputs for sets of inputs, without optimizations if it runs that way, and its self-distances."""

    path: str
    skeleton: ModelProto
    custom: tuple[str, ...]
    seed: int
    names: list[str]
    sets: list[Values]
    expected: Results
    unoptimized: bool  # whether it runs without optimizations
    rounding: float  # relative rounding of inputs by which `sensitivity` is measured
    least: float  # the floor of the limits of its float outputs
    scales: list[float]  # by output, the root mean square that it counts as having at least
    optimized: Results = field(default_factory=list)
    own: list[list[float]] = field(default_factory=list)  # self-distance by set, by output
    sensitivity: list[float] = field(default_factory=list)  # by output: distance caused by inputs rounded by `rounding`
    # By draw, by set, by output: the distance to the model with perturbed weights and inputs.
    perturbed: list[list[list[float]]] = field(default_factory=list)
    known: dict[int, tuple[str, list[Any]]] = field(default_factory=dict)  # evaluator and float64 outputs, by set
    unknown: DeviceError | None = None  # why there is no float64 evaluation
    load: LoadCost | None = None  # what it takes to load it, with all optimizations
    useless: Collection[bytes] = ()  # digests of draws that told nothing of it

    @property
    def exact(self) -> list[bool]:
        """By output, whether it holds no floats."""
        return [not compare.is_float(each.dtype) for each in self.expected[0]]

    @property
    def quantized(self) -> bool:
        """Whether the model quantizes values, not only dequantizes them."""
        return codes.quantizes(self.skeleton)

    @property
    def limits(self) -> list[list[float]]:
        """By set, by output, the distance allowed to models with the same precision."""
        exact = self.exact
        return [[compare.limit([own], self.least, exact[o]) for o, own in enumerate(row)] for row in self.own]

    def alone(self) -> Original:
        """The same, of the first set of inputs only."""
        one = {name: getattr(self, name)[:1] for name in ("sets", "expected", "optimized", "own")}
        known = {at: said for at, said in self.known.items() if at == 0}
        return replace(self, **one, known=known, perturbed=[draw[:1] for draw in self.perturbed])

    def within(self, found: Results) -> bool:
        """Whether these outputs are within `limits`."""
        return not _exceeding(self._distances(found), self.limits)

    def plain(self) -> Original | None:
        """The same, run without optimizations, wrong as its products of codes may be then; None if it does not run."""
        try:
            session = _opened(self.path, self.custom, optimize=False)
            found = [engine.run(session, each, self.names) for each in self.sets]
        except DeviceError:
            return None
        return replace(self, expected=found, optimized=[], own=[[0.0] * len(self.names) for _ in self.sets])

    def nearest(self, found: Results) -> tuple[list[compare.Distance], list[float]]:
        """By output, distance and self-distance of the original on the set with the largest ratio of error to limit.

        Input sets on which the original does not reproduce an output are ignored, unless there are no others.
        """
        limits = self.limits
        rows = [self._row(o, found, [each[o] for each in limits]) for o in range(len(self.names))]
        return [each for each, _ in rows], [own for _, own in rows]

    def _row(self, output: int, found: Results, limits: Sequence[float]) -> tuple[compare.Distance, float]:
        pairs = zip(self.expected, found, strict=True)
        scale = self.scales[output]
        column = [replace(compare.distance(x[output], y[output], scale), at=at) for at, (x, y) in enumerate(pairs)]
        reproduced = [d for d in column if self.own[d.at][output] <= compare.REPRODUCED or d.reason]
        each = max(reproduced or column, key=lambda d: (compare.excess(d.error, limits[d.at]), d.error))
        return each, self.own[each.at][output]

    def answer(self) -> dict[str, Any]:
        """The input of `verdict_on` about the original, as plain values."""
        own = [[min(column)] for column in zip(*self.own, strict=True)]  # of the set that says most
        facts = {"outputs": self.names, "exact": self.exact, "own": own, "sensitivity": self.sensitivity}
        facts |= {"quantized": self.quantized, "perturbed": self._perturbed_distance(), "floor": self.least}
        shapes = [trial.shapes_text(each) for each in self.sets]
        return facts | {"sets": len(self.sets), "seed": self.seed, "shapes": shapes}

    def float64_errors(self, found: Results, like_reference: bool) -> Float64Errors | None:
        """Float64 errors of a run with outputs over their limits; None if there are none, or no float64 evaluation.

        A run `like_reference` is held to `limits`; other runs of a quantized model may differ as far as perturbations
        drive it. If no evaluator runs the model, the limit is a bound by the depth of the model instead.

        An output that cancels out moves in steps, and whether the original's few runs moved it is luck. So while a run
        is over its limits on some sets only, perturbations are drawn, which allow more (`by_truth`).
        """
        rows = self._distances(found)
        allowed = self.limits if like_reference else self._allowed()
        over = _exceeding(rows, allowed)
        finite = all(np.isfinite(d.error) for i in over for d in rows[i])
        if not over or not finite or self.rounding:
            return None
        try:
            judged = self._by_truth(found, over, allowed)
            while not (judged.passed or self.quantized or len(over) == len(rows)) and self._draws(_DRAWS):
                judged = self._by_truth(found, over, allowed)
            return judged
        except DeviceError:
            if self.quantized:
                return None
            bound = compare.depth_bound(compare.EPSILONS["float32"], *_depth(self.skeleton))
            errors = [max(rows[i][o].error for i in over) for o in range(len(self.names))]
            return Float64Errors(BOUND, errors, [bound] * len(self.names))

    def _by_truth(self, found: Results, over: Sequence[int], allowed: Sequence[Sequence[float]]) -> Float64Errors:
        """`float64_errors` of the sets `over`, by the draws that there are."""
        each = [self._of_set(i, found[i]) for i in over]
        least = [min(allowed[i][o] for i in over) for o in range(len(self.names))]
        others = len(over) < len(self.sets)
        draws = [] if self.quantized else self.perturbed
        drawn = [[max((draw[i][o] for draw in draws), default=0.0) for i in over] for o in range(len(least))]
        pairs = [[row[o] for _, row in each] for o in range(len(least))]
        worst = [compare.by_truth(pairs[o], others, most, drawn[o]) for o, most in enumerate(least)]
        return Float64Errors(each[0][0], [error for error, _ in worst], [limit for _, limit in worst])

    def draw_perturbations(self, found: Results) -> None:
        """Draws further perturbations of a quantized model while an output of `found` exceeds the resulting limits.

        The effect of one perturbation on an output varies widely: five of six draws may change it by less than a
        hundredth of what the sixth does. What a step of a code does to an output hardly depends on the size of the
        rounding that causes it; how many small roundings it takes until one does is a matter of luck. So where a run
        exceeds the limits on some inputs only, perturbations grow until they move codes too: a kernel of codes that is
        wrong is wrong on all of them.
        """
        rows = self._distances(found) if self.perturbed else []
        while over := _exceeding(rows, self._allowed()):
            if not self._draws(_DRAWS + _LARGER * (len(over) < len(self.sets))):
                break

    def _draws(self, most: int) -> bool:
        """Draws a further perturbation; False if there are `most`."""
        draws = len(self.perturbed)
        if draws < most:
            self.perturbed.append(_perturbed(self, draws))
        return draws < most

    def _perturbed_distance(self) -> list[float]:
        """By output, the largest distance of all draws; infinite if any run of the original has another shape."""
        unreproduced = [[own if own == math.inf else 0.0 for own in row] for row in self.own]
        drawn = [row for draw in self.perturbed for row in draw]
        return [max(column) for column in zip(*drawn, *unreproduced, strict=True)]

    def _allowed(self) -> list[list[float]]:
        """`limits`; for quantized models the limits that follow from the perturbations."""
        if not self.quantized:
            return self.limits
        perturbed = self._perturbed_distance()
        return [
            [compare.quantized_limit([own, far], self.least) for own, far in zip(row, perturbed, strict=True)]
            for row in self.own
        ]

    def _of_set(self, at: int, found: list[compare.Array]) -> tuple[str, list[tuple[float, float]]]:
        """The evaluator, and by output the errors against float64 of `found` and of the original."""
        if self.unknown is not None:
            raise self.unknown
        if at not in self.known:
            try:
                name, rows = truth.truth(onnx.load(self.path), [self.sets[at]], self.names)
            except DeviceError as problem:
                self.unknown = problem
                raise
            self.known[at] = (name, rows[0])
        name, true = self.known[at]
        runs = [self.expected[at], *self.optimized[at : at + 1]]
        own = [max(column) for column in zip(*(truth.errors([true], [run], self.scales) for run in runs), strict=True)]
        return name, list(zip(truth.errors([true], [found], self.scales), own, strict=True))

    def _distances(self, found: Results) -> list[list[compare.Distance]]:
        """By set, by output."""
        return compare.by_set(self.expected, found, self.scales)


def _exceeding(rows: Sequence[Sequence[compare.Distance]], allowed: Sequence[Sequence[float]]) -> list[int]:
    """The sets on which an output exceeds its limit; both by set, by output."""
    return [at for at, row in enumerate(rows) if any(d.error > m for d, m in zip(row, allowed[at], strict=True))]


def kept(path: str) -> Original:
    """What was written of an original, in a folder that only this user can write."""
    found = pickle.loads(Path(path).read_bytes())
    assert isinstance(found, Original), "verify: the file holds something else"
    return found


def original(
    path: str,
    skeleton: ModelProto,
    custom: Sequence[str],
    wish: trial.InputRequest,
    rounding: float,
    provider: Provider = CPU,
) -> Original:
    """The original on inputs that it takes, run on the CPU and, where it is another one, in a provider.

    Raises DeviceError where it takes none.
    """
    unoptimized = not codes.needs_optimizations(skeleton)
    try:
        session = _opened(path, custom, optimize=not unoptimized)
        found = trial.input_sets(session, wish)
    except DeviceError:  # some models run only when the optimizer has removed what has no kernel
        if not unoptimized:
            raise
        unoptimized = False
        session = _opened(path, custom)
        found = trial.input_sets(session, wish)
    names = engine.output_names(session)
    del session  # with its weights
    made = Original(
        path, skeleton, tuple(custom), wish.seed, names, found.values, found.results, unoptimized, rounding,
        floor(skeleton), scales.scales_of(skeleton), useless=found.useless,
    )  # fmt: skip
    _measure(made)
    if provider.bound:
        _measure_in(made, provider)
    if made.quantized:
        made.perturbed.append(_perturbed(made, 0))
    return made


def _measure(o: Original) -> None:
    """Fills in the distances among runs with all optimizations, with none, and on perturbed inputs."""
    nudged, far = _nudged(o), _nudged(o, o.rounding) if o.rounding else []
    count, sets = len(o.names), len(o.sets)
    try:
        with Watch() as watch:
            session = _opened(o.path, o.custom)
            watch.opened()
            found = [watch.timed(partial(engine.run, session, o.sets[0]))]
        found += [watch.timed(partial(engine.run, session, each)) for each in (*o.sets[1:], *nudged, *far)]
        o.load = watch.load(ORIGINAL)
    except DeviceError:  # the reference ran: what is left is the floor
        o.own, o.sensitivity = [[0.0] * count for _ in o.sets], [0.0] * count
        return
    o.optimized, rest = found[:sets], found[sets:]
    near, sensitivity = rest[: len(nudged)] or o.optimized, rest[len(nudged) :] or o.optimized
    for a, b, c in zip(o.expected, o.optimized, near, strict=True):
        pairs = zip(*(compare.distances([x], [y], o.scales) for x, y in ((a, b), (b, c))), strict=True)
        o.own.append([max(x.error, y.error) for x, y in pairs])
    o.sensitivity = [each.error for each in compare.distances(o.optimized, sensitivity, o.scales)]


def _nudged(o: Original, share: float = 0.0) -> list[Values]:
    """The inputs moved as `feeds.nudged` does; no set where that moves none, since all of them are integers."""
    moved = [feeds.nudged(each, o.seed, share) for each in o.sets]
    pairs = ((a[name], b[name]) for a, b in zip(o.sets, moved, strict=True) for name in a)
    return moved if any(a is not b for a, b in pairs) else []


def _measure_in(o: Original, provider: Provider) -> None:
    """Counts distances to runs in a provider among the original's own. Raises DeviceError where it does not run."""
    session = engine.open_session(o.path, engine.options(libraries=o.custom, lean=True, arena=False), provider)
    found = [engine.run(session, each, o.names, provider) for each in o.sets]
    for row, distances in zip(o.own, o._distances(found), strict=True):
        row[:] = [max(own, each.error) for own, each in zip(row, distances, strict=True)]


def _perturbed(o: Original, draw: int) -> list[list[float]]:
    """By set, by output: the distance of the optimized model from itself with weights and inputs perturbed at random.

    Draws after the first `_DRAWS` double in size.
    """
    seed, size = o.seed + draw, PERTURBATION * 2 ** max(0, draw + 1 - _DRAWS)
    random = np.random.default_rng(seed)
    try:
        model = onnx.load(o.path)
        for tensor in model.graph.initializer:
            if tensor.data_type == TensorProto.FLOAT and math.prod(tensor.dims) >= _MIN_PERTURBED_ELEMENTS:
                value = numpy_helper.to_array(tensor)
                step = (1.0 + size * random.standard_normal(value.shape)).astype(np.float32)
                tensor.CopyFrom(numpy_helper.from_array(value * step, tensor.name))
        session = engine.open_session(model.SerializeToString(), engine.options(libraries=o.custom, lean=True))
        runs = [engine.run(session, feeds.nudged(each, seed, size), o.names) for each in o.sets]
    except (DeviceError, ValueError):  # ValueError: more than two gigabytes
        return [[0.0] * len(o.names) for _ in o.sets]
    return [[each.error for each in row] for row in compare.by_set(o.optimized or o.expected, runs, o.scales)]


def loads(path: str, custom: Sequence[str]) -> bool | None:
    """Whether the original, which does not run, can be loaded without optimizations; None where it cannot at all."""
    for optimize in (False, True):
        try:
            _opened(path, custom, optimize=optimize)
            return not optimize
        except DeviceError:
            continue
    return None


def _opened(path: str, libraries: Sequence[str], *, optimize: bool = True) -> InferenceSession:
    return engine.open_session(path, engine.options(libraries=libraries, optimize=optimize, lean=True, arena=False))


# ---- what a model computes with ----


def floor(skeleton: ModelProto) -> float:
    """The floor of the coarsest float type that the model computes with."""
    names = {_floor_name(kind) for kind in _element_types(skeleton)} - {""}
    if codes.quantizes(skeleton):
        names.add("quantized")
    return max((compare.FLOORS[name] for name in names), default=0.0)


def _element_types(skeleton: ModelProto) -> Iterator[int]:
    yield from (tensor.data_type for tensor in skeleton.graph.initializer)
    for value in (*skeleton.graph.input, *skeleton.graph.output, *skeleton.graph.value_info):
        yield value.type.tensor_type.elem_type
    for node in written_nodes(skeleton):
        yield from (each.i for each in node.attribute if node.op_type == "Cast" and each.name == "to")


def _floor_name(kind: int) -> str:
    """The key of `compare.FLOORS` for an ONNX element type; empty for what is no float."""
    name = TensorProto.DataType.Name(kind).lower()
    known = {"float": "float32", "double": "float64", "float16": "float16", "bfloat16": "bfloat16"}
    return "float8" if name.startswith("float8") else known.get(name, "")


def _depth(skeleton: ModelProto) -> tuple[int, int]:
    """The length of the longest path of operators, and the largest extent of any weight, a bound of the longest sum."""
    depth: dict[str, int] = {}
    for node in skeleton.graph.node:
        here = 1 + max((depth.get(name, 0) for name in node.input), default=0)
        depth |= dict.fromkeys(node.output, here)
    longest = max((dim for tensor in skeleton.graph.initializer for dim in tensor.dims), default=1)
    return max(depth.values(), default=1), longest
