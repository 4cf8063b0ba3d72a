"""Cases of scatters, for `test_rows`."""

from __future__ import annotations

import numpy as np

from tests.ops.case import Case, data, ints


def scatters() -> list[Case]:
    """Places are constants or not; where two updates meet, they are combined, or both are the same."""
    x, at = data(3, 4), np.array([[0, 2, 1, -1], [2, 0, 0, 1]])
    same = np.array([[0, 1], [2, 1], [0, 1]])
    put = {"known": (), "constants": (1,)}
    out = [
        Case("ScatterElements", (x, at, data(2, 4)), {"axis": 0}, 11, **put),
        Case("ScatterElements", (x, same, np.ones((3, 2), np.float32)), {"axis": 1}, 13, **put),
        Case("ScatterElements", (x, np.array([[3], [-4], [1]], np.int32), data(3, 1)), {"axis": -1}, 16, **put),
        Case("ScatterElements", (data(7), ints(6, -7, 3), data(3)), {}, 18, **put),
        Case("ScatterElements", (x, at[:1, :2], data(1, 2)), {"axis": 0}, 18, **put),
        Case("ScatterElements", (data(1, 4), ints(0, 0, 0)[None], data(1, 3)), {"axis": 0}, 18, **put),
        Case("ScatterND", (data(1, 4), np.array([[0]]), data(1, 4)), {}, 18, **put),
        Case("ScatterND", (data(5, 3), np.array([[4], [0], [-2]]), data(3, 3)), {}, 11, **put),
        Case("ScatterND", (x, np.array([[[0, 1], [2, -1]], [[1, 1], [1, 0]]]), data(2, 2)), {}, 16, **put),
        Case("ScatterND", (data(2, 3, 2, dtype="int64"), np.array([[1, 2]]), data(1, 2, dtype="int64")), {}, 18, **put),
    ]
    of_each, of_rows = np.array([[0, 2, -2, 1], [2, 2, 0, 1], [-1, 2, 0, 1]]), np.array([[-3], [0], [1], [-2], [0]])
    of_part = np.array([[[1, -1], [0, 2]]])
    pairs = np.array([[[0, 1], [2, -1]], [[0, 1], [-1, 3]], [[2, 3], [1, 0]]])
    for how in ("add", "mul", "max", "min"):
        since = 16 if how in ("add", "mul") else 18
        for k, dtype in enumerate(("float32", "int32", "int64", "float64")):
            x, by = data(3, 4, dtype=dtype), {"reduction": how}
            out += [
                Case("ScatterElements", (x, of_each, data(3, 4, dtype=dtype)), {"axis": 0, **by}, since),
                Case("ScatterND", (x, of_rows, data(5, 4, dtype=dtype)), by, since),
            ][k // 2 :]
        x, by = data(3, 4), {"reduction": how}
        out += [
            Case("ScatterElements", (x, np.array([[3, 3], [-4, 0]]), data(2, 2)), {"axis": 1, **by}, since),
            Case("ScatterElements", (x, of_each[:, :1].astype(np.int32), data(3, 1)), {"axis": -2, **by}, since),
            Case("ScatterElements", (data(7), ints(6, -7, 3, -1, 6), data(5)), by, since),
            Case("ScatterElements", (data(2, 3, 5), of_part, data(1, 2, 2)), {"axis": 1, **by}, 18),
            Case("ScatterElements", (data(1, 4), ints(0, 0, -1)[:, None], data(3, 1)), {"axis": 0, **by}, 18),
            Case("ScatterElements", (x, np.zeros((0, 4), np.int64), data(0, 4)), {"axis": 0, **by}, 18),
            Case("ScatterND", (x, pairs, data(3, 2)), by, since),
            Case("ScatterND", (x, np.array([-1]), data(4)), by, since),
            Case("ScatterND", (data(2, 3, 5), np.array([[1, 0], [-1, 0], [1, 2]]), data(3, 5)), by, since),
        ]
    out += [
        Case("ScatterElements", (data(3, 4), of_each[:2], data(2, 4)), {"axis": 0}, 18),
        Case("ScatterElements", (data(7), ints(6, -7, 3), data(3)), {}, 11),
        Case("ScatterElements", (data(2, 3, 5), np.array([[[1, -3], [0, 2]]]), data(1, 2, 2)), {"axis": 1}, 18),
        Case("ScatterND", (data(5, 3), np.array([[4], [0], [-2]]), data(3, 3)), {}, 11),
        Case("ScatterND", (data(3, 4), pairs[2:], data(1, 2)), {}, 16),
        Case("ScatterND", (data(3, 4, dtype="bool"), np.array([-1]), data(4, dtype="bool")), {}, 18),
    ]
    return out


CASES: tuple[Case, ...] = tuple(scatters())
