"""The half of bisection that runs pieces of models: the program that the verb `bisect` starts."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import ModelProto

from onnxfuse.errors import DeviceError
from onnxfuse.runtime import engine, feed_limits, feeds, process
from onnxfuse.verify import codes, compare, trial
from onnxfuse.verify.pieces import (
    Piece,
    behind,
    cut,
    origin_of,
    pieces,
    shared_names,
    tapped,
    transposed,
    whole,
)

AT_ONCE = 32  # pieces whose values are held at a time
SLACK = 10.0  # how far a piece may be from what it stands for, in bounds of one node


def main(request: dict[str, Any]) -> object:
    """Answer one request: `do` names the function, the rest are its arguments."""
    table: dict[str, Callable[..., object]] = {"errors": errors, "write": write}
    return table[request.pop("do")](**request)


def errors(
    a: str, b: str, libraries: Sequence[str], custom: Sequence[str], inputs: str | None, seed: int,
    dims: Mapping[str, int], rtol: float | None,
) -> list[dict[str, Any]]:  # fmt: skip
    """Each piece of `b` on values of `a`: its error with the libraries and, where that is too much, without them."""
    first, second = whole(a), whole(b)
    found = []
    values = _inputs(a, custom, inputs, seed, dims)
    layouts = _layouts(first, second, values, custom)
    for some in _batches(pieces(second.graph, layouts)):
        known = _values(first, [v for p in some for v in (*p.inputs, *p.outputs)], values, custom)
        found += [_compared(second, piece, layouts, known, libraries, custom, rtol) for piece in some]
    return found


def _layouts(
    first: ModelProto, second: ModelProto, inputs: trial.Values, custom: Sequence[str]
) -> dict[str, tuple[int, ...]]:
    """By name of each value that both models have the order of axes in which the second one holds it.

    A value that the second one holds in any other way is none of both. Function bodies tell: they are run.
    """
    found: dict[str, tuple[int, ...]] = {}
    names = sorted(shared_names(first.graph, second.graph))
    for at in range(0, len(names), 4 * AT_ONCE):
        some = names[at : at + 4 * AT_ONCE]
        ours, theirs = (_values(model, some, inputs, custom) for model in (first, second))
        orders = {name: _order(ours[name], theirs[name]) for name in some}
        found |= {name: order for name, order in orders.items() if order is not None}
    return found


def _order(ours: engine.Array, theirs: engine.Array) -> tuple[int, ...] | None:
    """The order of axes that makes the one of the other, as near as may be: as it is, channels last, channels first."""
    axes: tuple[int, ...] = tuple(range(ours.ndim))
    moved = ((*axes[:1], *axes[2:], *axes[1:2]), (*axes[:1], *axes[-1:], *axes[1:-1])) if len(axes) > 2 else ()
    orders: tuple[tuple[int, ...], ...] = (axes, *moved)
    fitting = [o for o in dict.fromkeys(orders) if np.transpose(ours, o).shape == theirs.shape]
    if len(fitting) < 2:
        return next(iter(fitting), None)
    return min(fitting, key=lambda o: compare.distance(np.transpose(ours, o), theirs).error)


def _batches(found: Sequence[Piece]) -> list[tuple[Piece, ...]]:
    return [tuple(found[at : at + AT_ONCE]) for at in range(0, len(found), AT_ONCE)]


def _inputs(a: str, custom: Sequence[str], inputs: str | None, seed: int, dims: Mapping[str, int]) -> trial.Values:
    """Inputs that the first model takes."""
    session = engine.open_session(a, engine.options(libraries=custom, optimize=False, lean=True))
    wish = trial.InputRequest(feed_limits.skeleton(Path(a)), inputs, seed, dims, feeds.RECIPES, larger=False)
    return trial.input_sets(session, wish).values[0]


def _values(
    model: ModelProto, names: Sequence[str], inputs: trial.Values, custom: Sequence[str]
) -> dict[str, engine.Array]:
    """These values, as a model computes them without optimizations, but where it saturates so."""
    more = tapped(model, [v for v in names if v not in inputs])
    settings = engine.options(libraries=custom, optimize=codes.saturates(model.graph), lean=True)
    session = engine.open_session(more.SerializeToString(), settings)
    made = engine.output_names(session)
    return {**inputs, **dict(zip(made, engine.run(session, inputs, made), strict=True))}


def _compared(
    model: ModelProto,
    piece: Piece,
    layouts: Mapping[str, tuple[int, ...]],
    known: Mapping[str, engine.Array],
    libraries: Sequence[str],
    custom: Sequence[str],
    rtol: float | None,
) -> dict[str, Any]:
    nodes = [model.graph.node[at] for at in piece.nodes]
    text = cut(model, transposed(nodes, piece, layouts), piece.outputs, known).SerializeToString()
    limit = max(_limit(known, piece), 0.0) if rtol is None else rtol
    error = _error(text, piece, known, [*libraries, *custom])
    over = not error <= limit
    return {
        "nodes": [n.name or n.output[0] for n in nodes],
        "operators": [n.op_type for n in nodes],
        "origin": list(dict.fromkeys(o for n in nodes for o in origin_of(model, n))),
        "inputs": list(piece.inputs),
        "outputs": list(piece.outputs),
        "error": error if math.isfinite(error) else None,
        "limit": limit,
        "wrong": over,
        "body_wrong": (not _error(text, piece, known, custom) <= limit) if over and libraries else over,
    }


def _limit(known: Mapping[str, engine.Array], piece: Piece) -> float:
    """Roundings of one sum as long as the largest extent, for each output of floats the worst; codes are exact."""
    extents = [max(known[name].shape, default=1) for name in (*piece.inputs, *piece.outputs)]
    floats = [known[name].dtype for name in piece.outputs if compare.is_float(known[name].dtype)]
    return max((SLACK * compare.group_bound(each, max(extents, default=1)) for each in floats), default=0.0)


def _error(text: bytes, piece: Piece, known: Mapping[str, engine.Array], libraries: Sequence[str]) -> float:
    """The largest relative error of a piece's outputs; infinite where it does not run."""
    try:
        session = engine.open_session(text, engine.options(libraries=libraries, lean=True, arena=False))
        made = engine.run(session, known, list(piece.outputs))
    except DeviceError:
        return math.inf
    return max(float(compare.distance(known[n], v).error) for n, v in zip(piece.outputs, made, strict=True))


def write(
    a: str, b: str, custom: Sequence[str], inputs: str | None, seed: int, dims: Mapping[str, int], nodes: Sequence[str],
    out: Mapping[str, str],
) -> list[str]:  # fmt: skip
    """Write the smallest piece of the second model that holds all these nodes, the piece of the first that it stands
    for, and what both read. Returns the names of what is written: `a`, `b`, `inputs`.
    """
    first, second = whole(a), whole(b)
    wanted = set(nodes)
    values = _inputs(a, custom, inputs, seed, dims)
    layouts = _layouts(first, second, values, custom)
    piece = min(
        (
            p
            for p in pieces(second.graph, layouts)
            if wanted <= {second.graph.node[at].name or second.graph.node[at].output[0] for at in p.nodes}
        ),
        key=lambda p: len(p.nodes),
        default=None,
    )
    if piece is None:
        raise DeviceError("bisect: no part of the second model lies between values that both have")
    known = _values(first, [*piece.inputs, *piece.outputs], values, custom)
    ours = cut(second, transposed([second.graph.node[at] for at in piece.nodes], piece, layouts), piece.outputs, known)
    theirs = cut(first, behind(first.graph, piece.inputs, piece.outputs), piece.outputs, known)
    onnx.save(theirs, out["a"])
    onnx.save(ours, out["b"])
    read = {i.name for model in (ours, theirs) for i in model.graph.input}
    with Path(out["inputs"]).open("wb") as stream:
        np.savez(stream, allow_pickle=False, **{name: known[name] for name in sorted(read)})
    return sorted(out)


if __name__ == "__main__":
    process.serve(main)
