"""The functions of other rooms that a build calls, as a frozen table: a test puts its own in their places."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from onnxfuse.build import build_library
from onnxfuse.build.toolchain import find_toolchain
from onnxfuse.emit import body, copied, emit, identity, write, write_stream
from onnxfuse.load import load, simplify_shapes
from onnxfuse.lower import lower
from onnxfuse.measure.gain import measure_gain
from onnxfuse.measure.profile import profile_models
from onnxfuse.pipeline.remembered import memory_of
from onnxfuse.plan import plan
from onnxfuse.render.cpp import kernel_text, render, tiles_sources
from onnxfuse.render.ort_glue import registration
from onnxfuse.rewrite import rewrite
from onnxfuse.schedule import schedule
from onnxfuse.verify import verify_culprits, verify_groups, verify_models


@dataclass(frozen=True, slots=True)
class Calls:
    """What each step calls; see the functions themselves for what they take and give."""

    load: Callable[..., Any] = load
    simplify: Callable[..., Any] = simplify_shapes
    rewrite: Callable[..., Any] = rewrite
    plan: Callable[..., Any] = plan
    lower: Callable[..., Any] = lower
    schedule: Callable[..., Any] = schedule
    kernel_text: Callable[..., Any] = kernel_text
    body: Callable[..., Any] = body
    identity: Callable[..., Any] = identity
    render: Callable[..., Any] = render
    tiles_sources: Callable[..., Any] = tiles_sources
    registration: Callable[..., Any] = registration
    find_toolchain: Callable[..., Any] = find_toolchain
    build_library: Callable[..., Any] = build_library
    emit: Callable[..., Any] = emit
    copied: Callable[..., Any] = copied
    write: Callable[..., Any] = write
    write_stream: Callable[..., Any] = write_stream
    verify_groups: Callable[..., Any] = verify_groups
    verify_models: Callable[..., Any] = verify_models
    verify_culprits: Callable[..., Any] = verify_culprits
    memory_of: Callable[..., Any] = memory_of
    profile_models: Callable[..., Any] = profile_models
    measure_gain: Callable[..., Any] = measure_gain
