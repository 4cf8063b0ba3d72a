"""The registration code of a library: it names kernels and CPU features, and `tiles/ort_glue.h` does the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass

from onnxfuse.errors import OnnxFuseError
from onnxfuse.render.source import Source


@dataclass(frozen=True, slots=True)
class Entry:
    """A kernel of the library: `extern const onnxfuse::Kernel onnxfuse_<symbol>` is defined in another source."""

    symbol: str


# XCR0 bits that the operating system must have set: SSE and AVX; the three of AVX-512; the two of AMX.
_YMM, _ZMM, _TILE = 0x6, 0xE6, 0x60000
_EAX, _EBX, _ECX, _EDX = range(4)

# CPUID leaf, subleaf, register, bit, and the saved state that each feature needs; names as gcc spells them.
FEATURES: dict[str, tuple[int, int, int, int, int]] = {
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
#include "ort_glue.h"

{externs}

namespace {{
const onnxfuse::Kernel* const kernels[] = {{
{kernels}
}};
{features}\
onnxfuse::Op ops[{size}];
}}  // namespace

extern "C" __attribute__((visibility("default"))) onnxfuse::ort::Status* RegisterCustomOps(
    onnxfuse::ort::SessionOptions* options, const onnxfuse::ort::Base* base) {{
  return onnxfuse::register_kernels(options, base, {{"{domain}", kernels, ops, {size}, {rows}, {row_count}}});
}}
"""


def _feature_rows(features: Sequence[str]) -> str:
    rows = []
    for name in features:
        leaf, subleaf, register, bit, state = FEATURES[name]
        rows.append(f'    {{"{name}", {leaf:#x}, {subleaf}, {register}, {bit}, {state:#x}}},')
    return "const onnxfuse::Feature features[] = {\n" + "\n".join(rows) + "\n};\n" if rows else ""


def registration(domain: str, kernels: Sequence[Entry], features: Sequence[str]) -> Source:
    """The source that registers `kernels` under `domain` where the CPU has all `features` (keys of `FEATURES`).

    It takes no target flags: it must run on any machine of the architecture in order to say no.

    Raises OnnxFuseError for a name that cannot be spelled and for a feature that has no row.
    """
    if not kernels or not re.fullmatch(r"[A-Za-z0-9_.]+", domain):
        raise OnnxFuseError(f"render: domain {domain!r} with {len(kernels)} kernels cannot be registered")
    if bad := [e.symbol for e in kernels if not re.fullmatch(r"\w+", e.symbol, re.ASCII)]:
        raise OnnxFuseError(f"render: {bad[0]!r} is not a C++ name")
    if unknown := [name for name in features if name not in FEATURES]:
        raise OnnxFuseError(f"render: no row in FEATURES for CPU feature {unknown[0]!r}")
    symbols = [f"onnxfuse_{e.symbol}" for e in kernels]
    text = _TEXT.format(
        count=f"{len(symbols)} kernel{'s' * (len(symbols) > 1)}",
        domain=domain,
        needs=", ".join(features) or "nothing special",
        externs="\n".join(f"extern const onnxfuse::Kernel {s};" for s in symbols),
        kernels="\n".join(f"    &{s}," for s in symbols),
        features=_feature_rows(features),
        size=len(symbols),
        rows="features" if features else "nullptr",
        row_count=len(features),
    )
    return Source("registration", text)
