"""Cases of attention as ONNX Runtime's transformer optimizer writes it, with the runtime as the only reference."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from tests.ops.case import Array, Case, data
from tests.ops.cases_contrib import M, own

BATCH, QUERIES, KEYS, FORMER, HEADS, WIDTH = 2, 5, 7, 3, 2, 8
LENGTH = 40  # terms behind a result: of a projection, a score, a sum of weights and a mean
SEEN = np.array([[1, 1, 0, 1, 1, 0, 0, 1], [0, 1, 1, 1, 2, -1, 1, 0]], np.int32)  # what is not positive hides


def call(op: str, *inputs: Array | None, outputs: int = 1, note: str = "", **attrs: Any) -> Case:
    """A case of two heads; packed weights and their bias are constants."""
    how: dict[str, Any] = {"constants": (1, 2)} if op == "Attention" else {}
    return own(M + op, *inputs, attrs={"num_heads": HEADS, **attrs}, outputs=outputs, length=LENGTH, note=note, **how)


def packed() -> list[Case]:
    """Attention with its projections."""
    x, w, b = data(BATCH, QUERIES, 6), data(6, 3 * WIDTH, seed=1), data(3 * WIDTH, seed=2)
    past, added = data(2, BATCH, HEADS, FORMER, WIDTH // HEADS, seed=3), data(1, HEADS, QUERIES, QUERIES, seed=4)
    every = QUERIES + FORMER
    square = np.repeat(SEEN[:, None, :QUERIES], QUERIES, axis=1) * np.tri(QUERIES, dtype=np.int32)
    uneven = {"qkv_hidden_sizes": [WIDTH, WIDTH, 6]}
    return [
        call("Attention", x, w, b),
        call("Attention", x, w, b, scale=0.7),
        call("Attention", x, w, b, SEEN[:, :QUERIES]),
        call("Attention", x, w, b, SEEN[:, :QUERIES], mask_filter_value=-5.0),
        call("Attention", x, w, b, square, note="mask for each query"),
        call("Attention", x, w, b, np.array([3, 0], np.int32), note="numbers of keys"),
        call("Attention", x, w, b, None, None, added),
        call("Attention", x, w, b, SEEN[:, :QUERIES], None, np.repeat(added, BATCH, axis=0)),
        call("Attention", x, w, b, unidirectional=1),
        call("Attention", x * 1e3, w, b, SEEN[:, :QUERIES], unidirectional=1, note="large scores"),
        call("Attention", x, w, b, None, past, outputs=2),
        call("Attention", x, w, b, SEEN[:, :every], past, unidirectional=1, outputs=2),
        call("Attention", x[:, :1], w, b, SEEN[:, : FORMER + 1], past, unidirectional=1, outputs=2, note="one query"),
        call("Attention", x, w, b, None, past[:, :, :, :0], outputs=2, note="nothing former"),
        call("Attention", x, data(6, 2 * WIDTH + 6, seed=5), data(2 * WIDTH + 6, seed=6), **uneven),
        call("Attention", data(1, 1, 6), w, b),
    ]


def separate() -> list[Case]:
    """MultiHeadAttention of queries, keys and values."""
    q, k, v = data(BATCH, QUERIES, WIDTH), data(BATCH, KEYS, WIDTH, seed=1), data(BATCH, KEYS, 6, seed=2)
    b, added = data(2 * WIDTH + 6, seed=3), data(BATCH, HEADS, QUERIES, KEYS, seed=4)
    heads = (data(BATCH, HEADS, KEYS, WIDTH // HEADS, seed=8), data(BATCH, HEADS, KEYS, WIDTH // HEADS, seed=9))
    former = [data(BATCH, HEADS, FORMER, WIDTH // HEADS, seed=seed) for seed in (5, 6)]
    longer, alike = data(1, 1, QUERIES, KEYS + FORMER, seed=7), data(3 * WIDTH, seed=10)
    return [
        call("MultiHeadAttention", q, k, v),
        call("MultiHeadAttention", q, k, v, scale=1.5),
        replace(call("MultiHeadAttention", q, k, v, note="all learned"), constants=(0, 1, 2)),
        call("MultiHeadAttention", q, k, v, b),
        call("MultiHeadAttention", q, k, v, b, SEEN[:, :KEYS]),
        call("MultiHeadAttention", q, k, v, None, None, added),
        call("MultiHeadAttention", q, k, v, None, None, added[:1, :1]),
        call("MultiHeadAttention", q, k, v, b, SEEN[:, :KEYS], added, outputs=3),
        call("MultiHeadAttention", q, *heads, note="heads apart"),
        call("MultiHeadAttention", q, k, k[:, ::-1], alike, None, longer, *former, outputs=3),
        call("MultiHeadAttention", q[:, :1], k[:, :2], k[:, 2:4], None, None, None, *former, outputs=3, note="one"),
        call("MultiHeadAttention", q, k[:, :QUERIES], v[:, :QUERIES], unidirectional=1),
    ]


CASES: tuple[Case, ...] = (*packed(), *separate())


def refused() -> list[tuple[Case, str, str]]:
    """Calls without a kernel: the code, and a part of the reason."""
    x, w, b = data(BATCH, QUERIES, 6), data(6, 3 * WIDTH, seed=1), data(3 * WIDTH, seed=2)
    q, k = data(BATCH, QUERIES, WIDTH), data(BATCH, KEYS, WIDTH, seed=1)
    begins = np.array([3, 2, 0, 1], np.int32)
    return [
        (call("Attention", x, w, b, do_rotary=1), "E-NO-KERNEL", "positions are rotated"),
        (call("Attention", x, w, b, begins), "E-NO-KERNEL", "the mask may tell where keys begin"),
        (call("Attention", x, w, b, num_heads=5), "E-INVALID", "8 channels do not make 5 heads"),
        (call("Attention", x, w, b, qkv_hidden_sizes=[8, 16]), "E-INVALID", "has 2 entries, not 3"),
        (call("Attention", x, data(6, 0), data(0)), "E-INVALID", "0 channels do not make 2 heads"),
        (
            call("Attention", x, data(6, 22), data(22), outputs=2, qkv_hidden_sizes=[8, 8, 6]),
            "E-NO-KERNEL",
            "not equally wide",
        ),
        (call("MultiHeadAttention", q), "E-NO-KERNEL", "inputs are packed"),
        (call("MultiHeadAttention", q, k, k, unidirectional=1), "E-NO-KERNEL", "do not belong to queries"),
        (call("MultiHeadAttention", q, k, k, None, None, data(3, 1, QUERIES, KEYS)), "E-BROADCAST", "3 and 2 differ"),
    ]


REFUSED = tuple(refused())
