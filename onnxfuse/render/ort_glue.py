"""The registration code of a library: its kernels and required CPU features, for `tiles/ort_glue.h`."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.errors import OnnxFuseError
from onnxfuse.render.source import Source
from onnxfuse.target import TILE_DATA


@dataclass(frozen=True, slots=True)
class Variant:
    """All kernels of a library for one instruction set, eligible where the CPU has all `features`.

    For each of `symbols`, `extern const onnxfuse::Kernel onnxfuse_<symbol>` is defined in another source; None: the
    kernel has no variant for this instruction set.
    """

    name: str
    symbols: tuple[str | None, ...]
    features: tuple[str, ...]  # keys of FEATURES
    capability: int = 0  # of GPUs: compute capability, 10 * major + minor
    portable: bool = False  # PTX: runs on later capabilities too
    alone: bool = False  # runs on no other capability


@dataclass(frozen=True, slots=True)
class Registration:
    """The execution provider that kernels are registered for: header to include, and arguments of the registration."""

    include: str
    arguments: str


# XCR0 bits that the operating system must have enabled: SSE and AVX; the three of AVX-512; the two of AMX.
_YMM, _ZMM, _TILE = 0x6, 0xE6, 0b11 << TILE_DATA - 1
_EAX, _EBX, _ECX, _EDX = range(4)

# CPUID leaf, subleaf, register and bit, and the XCR0 bits that each feature needs; names as gcc spells them.
FEATURES: dict[str, tuple[int, int, int, int, int]] = {
    "sse3": (1, 0, _ECX, 0, 0),
    "ssse3": (1, 0, _ECX, 9, 0),
    "cx16": (1, 0, _ECX, 13, 0),
    "sahf": (0x80000001, 0, _ECX, 0, 0),
    "sse4.1": (1, 0, _ECX, 19, 0),
    "sse4.2": (1, 0, _ECX, 20, 0),
    "popcnt": (1, 0, _ECX, 23, 0),
    "movbe": (1, 0, _ECX, 22, 0),
    "lzcnt": (0x80000001, 0, _ECX, 5, 0),
    "bmi": (7, 0, _EBX, 3, 0),
    "bmi2": (7, 0, _EBX, 8, 0),
    "avx": (1, 0, _ECX, 28, _YMM),
    "f16c": (1, 0, _ECX, 29, _YMM),
    "fma": (1, 0, _ECX, 12, _YMM),
    "avx2": (7, 0, _EBX, 5, _YMM),
    "avxvnni": (7, 1, _EAX, 4, _YMM),
    "avx512f": (7, 0, _EBX, 16, _ZMM),
    "avx512dq": (7, 0, _EBX, 17, _ZMM),
    "avx512cd": (7, 0, _EBX, 28, _ZMM),
    "avx512bw": (7, 0, _EBX, 30, _ZMM),
    "avx512vl": (7, 0, _EBX, 31, _ZMM),
    "avx512vbmi": (7, 0, _ECX, 1, _ZMM),
    "avx512vnni": (7, 0, _ECX, 11, _ZMM),
    "avx512bf16": (7, 1, _EAX, 5, _ZMM),
    "avx512fp16": (7, 0, _EDX, 23, _ZMM),
    "amx-tile": (7, 0, _EDX, 24, _TILE),
    "amx-int8": (7, 0, _EDX, 25, _TILE),
    "amx-bf16": (7, 0, _EDX, 22, _TILE),
}

_TEXT = """\
// The entry point: {count} of domain {domain}, for machines with {needs}.
#include "registration.h"
{includes}
{externs}

namespace {{
{rows}
const onnxfuse::Variant variants[] = {{
{variants}
}};
onnxfuse::Op ops[{op_count}];
onnxfuse::ort::Domain* domains[{variant_count}];
}}  // namespace

extern "C" __attribute__((visibility("default"))) onnxfuse::ort::Status* RegisterCustomOps(
    onnxfuse::ort::SessionOptions* options, const onnxfuse::ort::Base* base) {{
  return onnxfuse::register_kernels(
      options, base, {{"{domain}", variants, {variant_count}, {size}, ops, domains, {provider}}});
}}
"""


def _rows(at: int, variant: Variant) -> str:
    """The kernels of a variant and its required features."""
    lines = [f"const onnxfuse::Kernel* const kernels{at}[] = {{"]
    lines += [f"    &onnxfuse_{symbol}," if symbol is not None else "    nullptr," for symbol in variant.symbols]
    lines.append("};")
    if variant.features:
        lines.append(f"const onnxfuse::Feature features{at}[] = {{")
        for name in variant.features:
            leaf, subleaf, register, bit, state = FEATURES[name]
            lines.append(f'    {{"{name}", {leaf:#x}, {subleaf}, {register}, {bit}, {state:#x}}},')
        lines.append("};")
    return "\n".join(lines)


def _variant(at: int, variant: Variant) -> str:
    features = f"features{at}" if variant.features else "nullptr"
    reach = "kLater" if variant.portable else "kAlone" if variant.alone else "kFamily"
    gpu = f"{variant.capability}, onnxfuse::{reach}"
    return f'    {{"{variant.name}", kernels{at}, {features}, {len(variant.features)}, {gpu}}},'


HOST = Registration("", "nullptr, nullptr, nullptr")
GLUE = Source("ort_glue", '#include "ort_glue.h"\n')


def registration(domain: str, variants: Sequence[Variant], provider: Registration = HOST) -> tuple[Source, ...]:
    """The sources that register, in `domain`, the kernels of the first of `variants` that the machine supports.

    Where there are variants for GPUs and for CPUs, it is the first of each. All have the same kernels, in the same
    order. The first source lists them; the second is the same for all libraries, so that it is compiled once. Both are
    compiled for the baseline of the architecture, since they have to run on machines that support no variant.

    Raises OnnxFuseError for a name that is no C++ identifier and for a feature without a row in FEATURES.
    """
    size = len(variants[0].symbols) if variants else 0
    if not size or not re.fullmatch(r"[A-Za-z0-9_.]+", domain):
        raise OnnxFuseError(f"render: domain {domain!r} with {size} kernels cannot be registered")
    symbols = [s for v in variants for s in v.symbols if s is not None]
    if bad := [s for s in symbols if not re.fullmatch(r"\w+", s, re.ASCII)]:
        raise OnnxFuseError(f"render: {bad[0]!r} is not a C++ name")
    if unknown := [name for v in variants for name in v.features if name not in FEATURES]:
        raise OnnxFuseError(f"render: no row in FEATURES for CPU feature {unknown[0]!r}")
    assert all(len(v.symbols) == size for v in variants), "render: kernels differ in number"
    text = _TEXT.format(
        count=f"{size} kernel{'s' * (size > 1)}",
        domain=domain,
        needs="; or ".join(", ".join(v.features) or "nothing special" for v in variants),
        externs="\n".join(f"extern const onnxfuse::Kernel onnxfuse_{s};" for s in symbols),
        rows="\n".join(_rows(at, v) for at, v in enumerate(variants)),
        variants="\n".join(_variant(at, v) for at, v in enumerate(variants)),
        op_count=size * len(variants),
        variant_count=len(variants),
        size=size,
        includes=provider.include,
        provider=provider.arguments,
    )
    return Source("registration", text), GLUE
