"""Finds inputs that a model can take, by running it on one proposal after another."""

from __future__ import annotations

import itertools
import math
import re
import time
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path
from typing import TypeAlias

import numpy as np
import onnxruntime as ort
from onnx import ModelProto

from onnxfuse.errors import DeviceError
from onnxfuse.runtime import engine, feeds
from onnxfuse.runtime.attempts import attempt
from onnxfuse.runtime.engine import Array
from onnxfuse.runtime.feed_sizes import fitting_sizes, fixed_sizes
from onnxfuse.runtime.graphs import all_nodes
from onnxfuse.runtime.memory import Watch
from onnxfuse.runtime.provider import CPU, Provider
from onnxfuse.verify import compare, search
from onnxfuse.verify.compare import Results

Values: TypeAlias = dict[str, Array]
Sizes: TypeAlias = dict[str, int]

LONG_RUN = 3.0  # seconds of all cores together, which do not depend on what else a machine does
MORE_RUNS = 0.5  # the same, for all sets besides the first two
MORE_BYTES = 2 << 30  # what a run of a larger set may be expected to hold
_LARGE = (128, 1024, 16000)  # sizes of the last symbol, such as a length
_CHOICES = 3  # values of inputs that decide, each with sets of its own


@dataclass(frozen=True, slots=True)
class InputRequest:
    """The inputs on which a model is to run: values from the file `inputs`, else random ones by `seed`."""

    skeleton: ModelProto  # the skeleton of the model
    inputs: str | None
    seed: int
    dims: Mapping[str, int]  # sizes of symbols that the user gave
    recipes: Sequence[feeds.Recipe] = feeds.RECIPES
    also: Sequence[str] = ()  # outputs besides the model's own
    larger: bool = True  # sets of other sizes and for other decisions are wanted too
    useless: Collection[bytes] = ()  # digests of draws that tell nothing of a model that computes the same
    provider: Provider = CPU  # of the session


@dataclass(frozen=True, slots=True)
class RunCost:
    """The cost of a run: processor seconds of all cores, and peak memory beyond what the process held before."""

    seconds: float = 0.0
    peak_bytes: int = 0


@dataclass(slots=True)
class InputSets:
    """Inputs that a model accepts, with its outputs; `sizes` are the values of its symbols.

    `useless` has the digests of what was drawn before and failed or told nothing, where these do tell something.
    """

    values: list[Values] = field(default_factory=list)
    results: Results = field(default_factory=list)
    sizes: list[Sizes] = field(default_factory=list)
    costs: list[RunCost] = field(default_factory=list)  # of each run
    useless: set[bytes] = field(default_factory=set)

    def add(self, values: Values, result: list[Array], sizes: Sizes, cost: RunCost | None = None) -> None:
        """Append one set."""
        self.values.append(values)
        self.results.append(result)
        self.sizes.append(sizes)
        self.costs.append(cost or RunCost())

    def join(self, other: InputSets) -> None:
        """Append all sets of another object."""
        for each in zip(other.values, other.results, other.sizes, other.costs, strict=True):
            self.add(*each)
        self.useless |= other.useless


def input_sets(session: ort.InferenceSession, wish: InputRequest) -> InputSets:
    """Inputs that the model can take, and its outputs: those of the file, else random ones by the first recipe to work.

    Random sets have two sizes for each symbol, then 1 and 2 for as many of them as the model takes, others at random
    and larger ones; where an input decides by its value, each value has its sets. Where one run takes longer than
    `LONG_RUN`, one set has to do. What outputs besides the model's own hold is not looked at. Raises DeviceError when
    no recipe works and no sizes are found.
    """
    wanted = feeds.inputs_of(wish.skeleton)
    own = [name for name in engine.output_names(session) if name not in wish.also]
    runner = _Runner(session, [*own, *wish.also], len(own), wish, _order(wish.skeleton))
    if wish.inputs is not None:
        given = InputSets()
        for each in feeds.read_feeds(Path(wish.inputs), wanted):
            given.add(each, runner.run(each), {})
        return given
    found = InputSets()
    refused: DeviceError | None = None
    for number in range(
        max((min(_CHOICES, len(each.values) + 1) for each in wanted if each.role == "choice"), default=1)
    ):
        if found.values and not wish.larger:  # the first set is enough
            break
        try:
            found.join(_with_choices(runner, feeds.decided(wanted, number)))
        except DeviceError as problem:
            refused = refused or problem
    if refused is not None and not found.values:
        raise refused
    return found


@dataclass(frozen=True, slots=True)
class _Runner:
    """A session, the requested outputs, and the position of each node in the model."""

    session: ort.InferenceSession
    names: Sequence[str]
    own: int  # how many of the names are outputs of the model
    wish: InputRequest
    order: Mapping[str, int]

    def run(self, values: Values) -> list[Array]:
        """The outputs of the model for these values. Raises DeviceError."""
        with attempt(shapes_text(values)):
            return engine.run(self.session, values, self.names, self.wish.provider)

    def costed(self, values: Values) -> tuple[list[Array], RunCost]:
        """The same, and what it cost. Raises DeviceError."""
        begin = time.process_time()
        with Watch() as watch:
            result = self.run(values)
        return result, RunCost(time.process_time() - begin, watch.peak)

    def tells(self, results: Results) -> bool:
        """Whether the model has outputs, most of whose elements are not NaN."""
        return not self.empty(results) and all(compare.relevant(out) for each in results for out in each[: self.own])

    def empty(self, results: Results) -> bool:
        """Whether some run has no output with an element."""
        return self.own > 0 and not all(any(out.size for out in each[: self.own]) for each in results)

    def reached(self, problem: DeviceError) -> int:
        """How far a run went: the place of the node that failed, by its name in the runtime's words; -1 unknown."""
        return max(map(self._place, re.findall(r"Name:'([^']*)'", problem.message)), default=-1)

    def far(self, wanted: Sequence[feeds.Input], recipe: feeds.Recipe, sizes: Sizes) -> float:
        """How far the model gets with these sizes; infinite where its outputs tell something."""
        try:
            result = self.run(feeds.drawn(wanted, sizes, recipe, seed=self.wish.seed))
        except DeviceError as problem:
            return self.reached(problem)
        return math.inf if self.tells([result]) else len(self.order)

    def _place(self, name: str) -> int:
        """The place of a node by a name that the runtime may have made of its own or its result's; -1 unknown."""
        known = name if name in self.order else max((n for n in self.order if n in name), key=len, default="")
        return self.order.get(known, -1)


def shapes_text(values: Mapping[str, Array]) -> str:
    """The shapes of inputs in one line."""
    return ", ".join(f"{name} {'x'.join(map(str, value.shape)) or 'scalar'}" for name, value in values.items())


def _order(skeleton: ModelProto) -> dict[str, int]:
    """Places of nodes by their results and names, those of inner graphs behind all others."""
    every = list(enumerate(all_nodes(skeleton.graph)))
    results = {name: at for at, node in every for name in node.output if name}
    return {**results, **{node.name: at for at, node in every if node.name}}


def _with_choices(runner: _Runner, wanted: Sequence[feeds.Input]) -> InputSets:
    """Input sets for inputs whose decisions are made. Raises DeviceError."""
    wish = runner.wish
    fixed = fixed_sizes(wish.skeleton, wanted, wish.dims)
    unclear: InputSets | None = None  # mostly NaN, or empty: taken when nothing is better
    refused = DeviceError("runtime: the model cannot be run")
    tried: dict[bytes, DeviceError | None] = {}  # what became of sets; on equal ones the model would do the same
    for recipe, dims in ((r, d) for d in ({**wish.dims, **fixed}, wish.dims)[: 1 + bool(fixed)] for r in wish.recipes):
        drawn = feeds.digest_of_sets(wanted, seed=wish.seed, recipe=recipe, dims=dims)
        if drawn in tried or drawn in wish.useless:
            refused = tried.get(drawn) or refused
            continue
        tried[drawn] = None
        try:
            found = _by_recipe(runner, wanted, recipe, dims)
        except DeviceError as problem:
            refused = tried[drawn] = problem
            continue
        if runner.tells(found.results):
            found.useless = tried.keys() - {drawn}
            return _with_more(runner, wanted, found, recipe)
        unclear = unclear or found
    if unclear is not None and not runner.empty(unclear.results):
        return unclear
    summed = _with_sums(runner, wanted, {**wish.dims, **fixed})
    if summed is not None:
        return summed
    fitting = fitting_sizes(wish.skeleton, wanted, {**fixed, **wish.dims})
    reached = partial(runner.far, wanted)
    for known in (fixed | fitting, fixed)[not fitting :]:
        found_sizes = search.sizes(reached, wish.skeleton, wanted, {**known, **wish.dims})
        if found_sizes is None:
            continue
        recipe, sizes = found_sizes
        sizes = search.with_single_batch(reached, recipe, sizes, wanted, {**fixed, **wish.dims})
        return _with_more(runner, wanted, _by_recipe(runner, wanted, recipe, {**sizes, **wish.dims}), recipe)
    if unclear is not None:
        return unclear
    raise refused


def _by_recipe(
    runner: _Runner, wanted: Sequence[feeds.Input], recipe: feeds.Recipe, dims: Mapping[str, int]
) -> InputSets:
    """The sets of a recipe; the second one smaller, or left out, where runs take long. Raises DeviceError."""
    found = InputSets()
    for variant in range(len(recipe.sizes)):
        sizes = feeds.sizes_of(wanted, recipe, variant, dims)
        if found.sizes and _predicted(wanted, found, sizes) > LONG_RUN:
            sizes = feeds.sizes_of(wanted, recipe.shortened, variant, dims)
        values = feeds.drawn(wanted, sizes, recipe, seed=runner.wish.seed, variant=variant)
        result, cost = runner.costed(values)
        found.add(values, result, sizes, cost)
        if cost.seconds > LONG_RUN:
            break
    return found


def _with_sums(runner: _Runner, wanted: Sequence[feeds.Input], dims: Mapping[str, int]) -> InputSets | None:
    """Input sets for inputs of which one size is the sum of two others, as for a mask over a cache and new words."""
    for recipe, summed in itertools.product((feeds.RECIPES[0], feeds.ALONE), feeds.with_sums(wanted, dims)):
        try:
            found = _by_recipe(runner, summed, recipe, dims)
        except DeviceError:
            continue
        if runner.tells(found.results):
            return _with_more(runner, summed, found, recipe)
    return None


# ---- other sizes ----


def _with_more(runner: _Runner, wanted: Sequence[feeds.Input], base: InputSets, recipe: feeds.Recipe) -> InputSets:
    """The sets, and sets of other sizes as far as the model takes them and there is time.

    Symbols of one size stay of one size: nobody knows whether they may differ.
    """
    sizes = {symbol: size for symbol, size in base.sizes[0].items() if symbol not in runner.wish.dims}
    kinds = list(dict.fromkeys(size for symbol, size in sizes.items() if _occurs(symbol, wanted)))
    if not kinds or not runner.wish.larger or len(base.values) < len(recipe.sizes):
        return base
    until = time.process_time() + MORE_RUNS

    def run(changed: Mapping[int, int]) -> bool:
        """Whether the model takes the sizes, of which there is a set then."""
        new = {**base.sizes[0], **{symbol: changed.get(size, size) for symbol, size in sizes.items()}}
        if new in base.sizes:
            return True
        if predicted_bytes(base, wanted, new) > MORE_BYTES:
            return False
        try:
            if not _in_time(runner, wanted, base, new, until):
                return False
            values = feeds.drawn(wanted, new, recipe, seed=runner.wish.seed, variant=len(base.values))
            result, cost = runner.costed(values)
        except DeviceError:
            return False
        if cost.peak_bytes <= MORE_BYTES and cost.seconds <= MORE_RUNS and runner.tells([result]):
            base.add(values, result, new, cost)
            return True
        return False

    for value in (1, 2):
        taken: dict[int, int] = {}
        for kind in kinds:
            taken |= {kind: value} if run({**taken, kind: value}) else {}
    random = np.random.default_rng(runner.wish.seed)
    run({kind: _random_size(kind, random) for kind in kinds})
    for size in _LARGE:
        run({kinds[-1]: size})
    return base


def _in_time(runner: _Runner, wanted: Sequence[feeds.Input], base: InputSets, new: Sizes, until: float) -> bool:
    """Whether a run at new sizes is predicted to end by `until` (a value of `time.process_time`).

    Before it says no, the largest run is timed once more, where that is cheap: other work may have disturbed it. Raises
    DeviceError when that fails.
    """

    if time.process_time() + _predicted(wanted, base, new) <= until:
        return True
    at = max(range(len(base.sizes)), key=lambda i: _elements(wanted, base.sizes[i]))
    before = base.costs[at]
    if before.seconds >= MORE_RUNS / 10 or time.process_time() > until:
        return False
    _, again = runner.costed(base.values[at])
    base.costs[at] = replace(before, seconds=min(before.seconds, again.seconds))
    return time.process_time() + _predicted(wanted, base, new) <= until


def _predicted(wanted: Sequence[feeds.Input], base: InputSets, new: Sizes) -> float:
    """Seconds of a run at new sizes, from the runs there are."""
    known = [(_elements(wanted, s), cost.seconds) for s, cost in zip(base.sizes, base.costs, strict=True)]
    return predicted(known, _elements(wanted, new))


def predicted(known: Sequence[tuple[int, float]], elements: int) -> float:
    """Seconds of a run on so many elements, from some runs of (elements, seconds).

    Beyond the largest the exponent is half way between that of the runs, if it is at least 1, and 2: attention grows
    with the square, which short runs hardly show.
    """
    most, slowest = max(known)
    if elements <= most:
        return min(t / n for n, t in known) * elements
    growth = [1.0, *(math.log(slowest / t) / math.log(most / n) for n, t in known if n <= most / 4 and 0 < t < slowest)]
    return slowest * math.pow(elements / most, min(max(growth) / 2 + 1, 2.0))


def _occurs(symbol: str, wanted: Sequence[feeds.Input]) -> bool:
    return any(symbol in feeds.symbols(extent) for each in wanted for extent in each.shape)


def _elements(wanted: Sequence[feeds.Input], sizes: Sizes) -> int:
    return 1 + sum(math.prod(feeds.size_of(extent, sizes) for extent in each.shape) for each in wanted)


def predicted_bytes(base: InputSets, wanted: Sequence[feeds.Input], new: Sizes) -> int:
    """The predicted memory of a run at new sizes, extrapolated from runs that differ only in the size that grows.

    The exponent is that between the last two of them, at least linear and at most quadratic. 0 if there are none.
    """
    first = base.sizes[0]
    line = [
        (_elements(wanted, sizes), cost.peak_bytes)
        for sizes, cost in zip(base.sizes, base.costs, strict=True)
        if all(sizes[s] < v if first[s] != v else sizes[s] == v for s, v in new.items())
    ]
    if not line:
        return 0
    line.sort()
    (few, less), (many, more) = line[-2:] if len(line) > 1 else line * 2
    power = math.log(max(more, 1) / max(less, 1)) / math.log(many / few) if many > few else 1.0
    return int(more * (_elements(wanted, new) / many) ** min(max(power, 1.0), 2.0))


def _random_size(size: int, random: np.random.Generator) -> int:
    """A random size of similar magnitude."""
    step = next((step for step in (32, 16, 8) if size >= step and size % step == 0), 1)
    return int(random.integers(1, 6)) * step if step > 1 else int(random.integers(3, 24))
