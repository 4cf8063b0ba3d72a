"""The functions of other packages that a build calls, as a frozen table in which tests can replace entries."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from onnxfuse.backends import BACKENDS, Backend
from onnxfuse.emit import body, copied, emit, identity, write, write_stream
from onnxfuse.load import load, simplify_shapes
from onnxfuse.lower import lower
from onnxfuse.measure.gain import measure_gain
from onnxfuse.measure.profile import profile_models
from onnxfuse.measure.samples import time_samples
from onnxfuse.pipeline.verdict_cache import memory_of
from onnxfuse.plan import plan
from onnxfuse.rewrite import rewrite
from onnxfuse.verify import verify_culprits, verify_groups, verify_models, verify_reference


@dataclass(frozen=True, slots=True)
class Calls:
    """The functions that the steps call; their arguments and results are documented with them."""

    backends: Mapping[str, Backend[Any]] = field(default_factory=lambda: BACKENDS)
    load: Callable[..., Any] = load
    simplify: Callable[..., Any] = simplify_shapes
    rewrite: Callable[..., Any] = rewrite
    plan: Callable[..., Any] = plan
    lower: Callable[..., Any] = lower
    body: Callable[..., Any] = body
    identity: Callable[..., Any] = identity
    emit: Callable[..., Any] = emit
    copied: Callable[..., Any] = copied
    write: Callable[..., Any] = write
    write_stream: Callable[..., Any] = write_stream
    verify_groups: Callable[..., Any] = verify_groups
    verify_models: Callable[..., Any] = verify_models
    verify_reference: Callable[..., Any] = verify_reference
    verify_culprits: Callable[..., Any] = verify_culprits
    memory_of: Callable[..., Any] = memory_of
    profile_models: Callable[..., Any] = profile_models
    measure_gain: Callable[..., Any] = measure_gain
    time_samples: Callable[..., Any] = time_samples
