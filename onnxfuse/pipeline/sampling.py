"""Measures samples for prices: compiled kernels and nodes of the runtime, timed interleaved."""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

from onnxfuse.build import BuildRequest, CompileError
from onnxfuse.emit import copies
from onnxfuse.errors import DeviceError, OnnxFuseError
from onnxfuse.ir.kernel import Kernel
from onnxfuse.measure.database import Database, Measurement
from onnxfuse.measure.samples import SampleTime, Task
from onnxfuse.pipeline.calls import Calls
from onnxfuse.pipeline.sample_keys import FURTHER, NEAR, Keys, call_text, shape_of, weights_of
from onnxfuse.pipeline.state import Context, cache_of
from onnxfuse.plan.samples import KernelSample, NodeSample, Sample
from onnxfuse.render.ort_glue import Variant
from onnxfuse.render.source import Source
from onnxfuse.target import Cpu

DOMAIN = "onnxfuse.sampled"
FEW, MANY = 2, 16  # copies of a sample in a model
ENOUGH = 2e-4  # seconds that a run of all copies should take
WEIGHTS = 1 << 28  # bytes of the weights of all copies at most
SECONDS = 0.12  # for which a sample is run
BATCH = 24  # samples that are measured before the clock is looked at


@dataclass(frozen=True, slots=True)
class Wanted:
    """A sample to be measured on a number of threads."""

    sample: Sample
    threads: int
    key: str


@dataclass(slots=True)
class Sampler:
    """Measures samples while there is time, and stores the results. Samples that failed to run are not tried again.

    `measured` are the samples that it found, `problems` those of all others.
    """

    context: Context
    calls: Calls
    keys: Keys
    database: Database
    threads: Sequence[int]
    until: float
    measured: dict[str, tuple[Sample, int, Measurement]] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)

    def run(self, samples: Iterable[Sample]) -> int:
        """Measure what is not known yet, the first ones first; how many that were."""
        known = self.database.known(self.keys.place)
        wanted = {w.key: w for s in samples for w in self._wanted(s)}
        missing = [w for key, w in wanted.items() if key not in known and key not in self.problems]
        count = 0
        for start in range(0, len(missing), BATCH):
            if time.monotonic() >= self.until:
                break
            count += self._batch(missing[start : start + BATCH])
            self.context.tell("tune", {"measured": len(self.measured), "left": max(0, len(missing) - start - BATCH)})
        return count

    def _wanted(self, sample: Sample) -> Iterator[Wanted]:
        for threads in self.threads:
            yield Wanted(sample, threads, self.keys.of(sample, threads))

    def _batch(self, batch: Sequence[Wanted]) -> int:
        library = self._library([w.sample.kernel for w in batch if isinstance(w.sample, KernelSample)])
        rows = []
        for threads in self.threads:
            mine = [w for w in batch if w.threads == threads]
            for w, timed in zip(mine, self._timed(mine, library, threads), strict=True):
                if timed.problem:
                    self.problems[w.key] = timed.problem
                    continue
                row = self._row(w, timed)
                rows.append(row)
                self.measured[w.key] = (w.sample, threads, row)
        self.database.keep(rows)
        return len(rows)

    def _row(self, w: Wanted, timed: SampleTime) -> Measurement:
        what = call_text(w.sample.call) if isinstance(w.sample, NodeSample) else self._name(w.sample.kernel)
        date = datetime.now(UTC).isoformat(timespec="seconds")
        spread = float(f"{timed.spread:.4g}")
        said = f"{what}, {w.threads} threads, weights {self.keys.found(w.sample)}"
        return Measurement(w.key, self.keys.place, said, float(f"{timed.seconds:.5g}"), spread, timed.runs, date)

    def _timed(self, batch: Sequence[Wanted], library: Path | None, threads: int) -> list[SampleTime]:
        tasks: list[Task | str] = []
        for number, w in enumerate(batch):
            path = self.context.folder / f"sample{threads}_{number}.onnx"
            try:
                tasks.append(self._task(w.sample, path))
            except (OnnxFuseError, ValueError, TypeError, KeyError) as problem:
                tasks.append(str(problem) or type(problem).__name__)
        good = [task for task in tasks if isinstance(task, Task)]
        libraries = [library] if library is not None else []
        try:
            timed = partial(self.calls.time_samples, time_limit=self.context.meter.left)
            found = iter(timed(good, libraries=libraries, threads=threads, seconds=SECONDS) if good else [])
        except DeviceError as problem:
            found = iter([SampleTime(problem=problem.message)] * len(good))
        made = [SampleTime(problem=task) if isinstance(task, str) else next(found) for task in tasks]
        for task in good:
            os.unlink(task.model)
        return made

    def _task(self, sample: Sample, path: Path) -> Task:
        """The model of a sample, written."""
        count, weights = self._copies(sample), weights_of(sample)
        if isinstance(sample, NodeSample):
            node, graph = sample.node, sample.graph
            assert node is not None and graph is not None
            pairs = [*zip(node.inputs, sample.call.inputs, strict=False)]
            pairs += zip([o for o in node.outputs if o], sample.call.outputs, strict=False)
            copies.of_node(node, graph, {v: t.shape for v, t in pairs if v and t is not None}, count, path)
        else:
            kernel = sample.kernel
            storage = [p.layout.shape(tuple(p.shape)) for p in (*kernel.inputs, *kernel.outputs)]
            shapes = [shape_of(sample, each) for each in storage]
            copies.of_kernel(kernel, self._name(kernel), DOMAIN, sample.constants, shapes, count, path)
        return Task(str(path), count, count * weights)

    def _copies(self, sample: Sample) -> int:
        """So many that a run is long enough to be timed, and that weights come from where they come from in a model."""
        predicted = max(sample.seconds[0] if sample.seconds else ENOUGH, 1e-7)
        count, weights = ENOUGH / predicted, max(weights_of(sample), 1)
        where = self.keys.found(sample)
        if where != NEAR:
            target = self.context.targets[0]
            assert isinstance(target, Cpu), "pipeline: samples are measured on CPUs"
            level = 2 * target.l2_bytes if where == FURTHER else target.l3_bytes
            count = max(count, 2 * level / weights)
        return int(max(1, min(max(FEW, count), MANY, WEIGHTS / weights)))

    def _name(self, kernel: Kernel) -> str:
        return f"Sample_{hashlib.sha256(self.keys.text(kernel).encode()).hexdigest()[:16]}"

    def _library(self, kernels: Sequence[Kernel]) -> Path | None:
        """A library of kernels; those that do not compile are left out, and so are the samples of them."""
        context, backend = self.context, self.context.backend
        distinct = {self._name(k): k for k in kernels}
        target, out = context.targets[0], context.folder / "libsamples.so"
        toolchain = backend.find_toolchain(context.options, target.machine)
        while distinct:
            sources = list(self._sources(distinct))
            features = backend.features(target, list(distinct.values()))
            glue = backend.registration(DOMAIN, [Variant(target.name, tuple(distinct), features)])
            try:
                jobs, cache = context.options.jobs, cache_of(context)
                request = BuildRequest(sources, glue, toolchain, cache, jobs, out, context.meter.left)
                return backend.build_library(request).path
            except CompileError as problem:
                left = {name: kernel for name, kernel in distinct.items() if name not in problem.units}
                if len(left) == len(distinct):
                    raise
                distinct = left
        return None

    def _sources(self, kernels: Mapping[str, Kernel]) -> Iterator[Source]:
        backend, target = self.context.backend, self.context.targets[0]
        for name, kernel in kernels.items():
            yield backend.render(kernel, name, name, backend.flags(target, (kernel,)))
        yield from backend.support(list(kernels.values()), "", backend.flags(target, ()))
