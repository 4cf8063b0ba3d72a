"""Looks up samples measured on this machine: the keys of the database."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property

from onnxfuse.build.cache import key_of
from onnxfuse.cost import number
from onnxfuse.cost.nodes import Call, Tensor
from onnxfuse.cost.runtime import HELD
from onnxfuse.ir.graph import Attribute, Constant
from onnxfuse.ir.index import Index
from onnxfuse.ir.kernel import Kernel
from onnxfuse.measure.database import FILE, Database, Measurement
from onnxfuse.measure.machine import identity
from onnxfuse.pipeline.groups import predicting
from onnxfuse.pipeline.state import Context, cache_of
from onnxfuse.plan.price import nothing_known
from onnxfuse.plan.samples import KernelSample, NodeSample, Sample
from onnxfuse.report.document import version
from onnxfuse.target import Cpu, Target

PROVIDER = "CPUExecutionProvider"
NEAR, FURTHER, FARTHEST = "in the nearest caches", "in the last cache", "in memory"  # where weights are found

SMALL = 1 << 16  # bytes of weights for which it hardly counts where they are found


@dataclass(frozen=True, eq=False)
class Keys:
    """The keys of samples on this machine, of this runtime, with this compiler."""

    context: Context
    _texts: dict[int, tuple[Kernel, str]] = field(default_factory=dict)

    @cached_property
    def place(self) -> str:
        """The machine and its runtime."""
        return key_of("place", "1", *identity(), version("onnxruntime") or "", PROVIDER)

    @cached_property
    def _made(self) -> str:
        """Everything but a kernel's text that its machine code depends on."""
        backend, target = self.context.backend, self.context.targets[0]
        toolchain = backend.find_toolchain(self.context.options, target.machine)
        return key_of(toolchain.identity, target.name, *backend.flags(target, ()), *backend.headers())

    def of(self, sample: Sample, threads: int) -> str:
        """The key of a sample on so many threads."""
        about = (self.place, str(threads), self.found(sample))
        if isinstance(sample, NodeSample):
            return key_of("node", *about, str(sample.opset), call_text(sample.call))
        inputs = (
            f"{p.value in sample.constants} {p.dtype} {shape_of(sample, p.storage)}" for p in sample.kernel.inputs
        )
        return key_of("kernel", *about, self._made, self.text(sample.kernel), *inputs)

    def text(self, kernel: Kernel) -> str:
        """The text that identifies a kernel."""
        if id(kernel) not in self._texts:
            self._texts[id(kernel)] = kernel, self.context.backend.kernel_text(kernel)
        return self._texts[id(kernel)][1]

    def found(self, sample: Sample) -> str:
        """The cache level from which a sample reads its weights in a run of the model."""
        target = predicting(self.context)
        assert isinstance(target, Cpu), "pipeline: samples are measured on CPUs"
        own = weights_of(sample)
        size = max(own, sample.run_weight_bytes) if own > SMALL else own
        return NEAR if size <= target.l2_bytes * HELD else FURTHER if size <= target.l3_bytes * HELD else FARTHEST


def weights_of(sample: Sample) -> int:
    """Bytes of the weights that a sample reads."""
    if isinstance(sample, NodeSample):
        return sum(t.bytes for t in sample.call.read if t.constant)
    return sum(c.bytes for c in sample.constants.values())


def shape_of(sample: KernelSample, storage: Iterable[Index]) -> tuple[int, ...]:
    """A shape in memory as numbers."""
    return tuple(number(e, sample.symbols) for e in storage)


def call_text(call: Call) -> str:
    """The text of everything that the runtime's time for a call depends on."""
    inputs = ", ".join("-" if t is None else _tensor(t) for t in call.inputs)
    attrs = ", ".join(f"{name}={_attribute(value)}" for name, value in sorted(call.attrs.items()))
    return f"{call.op}({inputs}) -> {', '.join(map(_tensor, call.outputs))} {{{attrs}}}"


def _tensor(t: Tensor) -> str:
    held = f" = {list(t.ints)}" if t.ints else " constant" if t.constant else ""
    return f"{t.dtype}{list(t.shape)}{held}"


def _attribute(value: Attribute) -> str:
    if isinstance(value, Constant):
        return f"{value.dtype}{list(value.shape)} {hashlib.sha256(value.load().tobytes()).hexdigest()[:16]}"
    return repr(value)


def database_of(context: Context) -> Database | None:
    """The database in the folder of the cache; None where there is no cache, or the kernels run elsewhere."""
    cache = cache_of(context) if context.backend.timer is None and context.here[:1] else None
    return Database(cache.root / FILE) if cache is not None else None


def known_to(context: Context) -> Callable[[Sample, Target], float | None]:
    """Seconds of a sample on a machine, where they were measured here."""
    database = database_of(context)
    if database is None or not database.path.is_file():
        return nothing_known
    keys = Keys(context)
    return lookup(keys, database.known(keys.place))


def lookup(keys: Keys, known: Mapping[str, Measurement]) -> Callable[[Sample, Target], float | None]:
    """What a sample takes on a machine, out of what is known."""

    def seconds(sample: Sample, machine: Target) -> float | None:
        assert isinstance(machine, Cpu), "pipeline: samples are measured on CPUs"
        found = known.get(keys.of(sample, machine.cores))
        return found.seconds if found is not None else None

    return seconds if known else nothing_known
