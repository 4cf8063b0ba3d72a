"""Where the kernels of a build run on this machine: in the CPU's provider, or in that of its GPU."""

from __future__ import annotations

from functools import lru_cache

from onnxfuse.errors import DeviceError
from onnxfuse.pipeline.state import Context
from onnxfuse.runtime.provider import CPU, DEVICES, Provider, provider_of
from onnxfuse.target import runs_on_gpu


def place_of(context: Context) -> Provider:
    """The provider of this machine's GPU if kernels of a build run there; that of the CPU otherwise.

    Kernels for CPUs beside those for GPUs are run as those of a build for CPUs.
    """
    options = context.options
    if options.target not in DEVICES or context.here or not _on_gpu(context):
        return CPU
    return _provider(options.target, options.cuda_graph)


def tried_here(context: Context) -> tuple[str, ...]:
    """Names of the targets whose kernels are run on this machine; of several for GPUs a library chooses one."""
    return context.here if place_of(context) == CPU else _on_gpu(context)[:1]


def _on_gpu(context: Context) -> tuple[str, ...]:
    return tuple(target.name for target in context.targets if runs_on_gpu(target.name))


@lru_cache(1)
def _provider(target: str, graph: bool) -> Provider:
    """The provider of a target's device; that of the CPU where the runtime has none."""
    try:
        return provider_of(target, "verify", graph=graph, exact=True)
    except DeviceError:
        return CPU
