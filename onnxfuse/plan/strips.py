"""Whether a window joins the convolution that makes its image, and the next convolution both, by strips of lines.

A pool joins it in any case, as a phase of its own where strips do not pay: that saves a kernel call.

This saves barriers, kernel calls, and the traffic of images between them, which stay in the core's own cache. It costs
that lines at the borders of tasks are computed twice, and that all tasks read all weights. It pays if the image is
larger than the cores' own caches, and what is behind them is much slower.
"""

from __future__ import annotations

from dataclasses import dataclass

from onnxfuse.cost import OVERLAP, REUSABLE
from onnxfuse.ir.compose import loads, walk
from onnxfuse.ir.dtype import F32
from onnxfuse.ir.graph import Graph, Node
from onnxfuse.ir.index import Index, axes_of
from onnxfuse.ir.indexing import coefficient, product, reach
from onnxfuse.ir.scalar import Reduce
from onnxfuse.plan.chain import ChainedProduct, product_of, reduces
from onnxfuse.plan.kinds import WEIGHTS, WINDOW, Kind, Members
from onnxfuse.target import Cpu

IMAGE = 4  # dimensions of an image: batch, channels, lines, places
LEAST = {False: 0.95, True: 1.0}  # time as one kernel over time as two, at most, by whether L2 is small
STORED = 2  # ways of a line that is stored to


def crosses_tiles(op: str) -> str:
    """Why a window is not computed from tiles."""
    return f"{op} reads windows that cross the tiles of the group"


@dataclass(frozen=True, slots=True)
class _Window:
    """Taps of a window, lines that it spans, and lines from one to the next."""

    taps: int
    span: int
    stride: int


def window_refusal(
    graph: Graph, members: Members, node: Node, kind: Kind, target: Cpu, single: bool
) -> tuple[str, str] | None:
    """Code and reason why a window does not join a group, given by the outputs and kinds of its members, or None.

    `single`: weights are stored as float32.
    """
    summed = [k for _, k in members if reduces(k)]
    if len(summed) != 1 or summed[0].name != WEIGHTS or not summed[0].spatial:
        return ("E-TYPE", crosses_tiles(node.op))
    if _pools(kind, node.inputs[0]):
        return None
    return _strips_refusal(graph, members, node.inputs[0], node.op, kind, target) if single else _no(node.op)


def _no(op: str) -> tuple[str, str]:
    return ("E-TYPE", crosses_tiles(op))


def _pools(kind: Kind, image: str) -> bool:
    """Whether a window has no weights."""
    return all(x.source == image for d in kind.definitions for x in loads(d.value))


def _strips_refusal(
    graph: Graph, members: Members, read: str, op: str, kind: Kind, target: Cpu
) -> tuple[str, str] | None:
    """Code and reason why a window that reads this value is not computed by strips with the convolution before it."""
    (summed,) = (k for _, k in members if k.name == WEIGHTS)
    made = next((outputs for outputs, _ in members if read in outputs), None)
    image, result = _extents(graph, read), tuple(e.constant or 0 for e in kind.definitions[0].shape)
    result = (image[0], *result[1:]) if image is not None else result
    window = _window_of(kind, read)
    if made is None or image is None or window is None or not all(result) or result[2] == 1:
        return _no(op)
    first = product_of(graph, summed)
    if not first.plain or first.rows != _pixels(graph, read) or not target.rows_of_line(image[3]):
        return _no(op)
    apart, one = _microseconds(first, image, result, window, target)
    if one > LEAST[target.small_l2] * apart:
        return ("E-COST", f"{op} after the convolution by strips of lines: {one:.0f} us, apart {apart:.0f} us")
    return None


def follows_window(graph: Graph, members: Members, kind: Kind, target: Cpu) -> bool:
    """Whether a convolution reads the pixels of a window that is computed by strips with the convolution before it."""
    summed = [k for _, k in members if reduces(k)]
    if [k.name for k in summed] != [WEIGHTS, WINDOW]:
        return False
    image = next(loads(summed[1].definitions[0].value)).source
    if _pools(summed[1], image) and _strips_refusal(graph, members, image, "", summed[1], target) is not None:
        return False
    here = product_of(graph, kind)
    made = next((outputs for outputs, _ in members if here.left in outputs), ())
    alone = all(len(graph.consumers().get(v, ())) == 1 and v not in graph.outputs for v in made)
    return bool(made) and alone and here.plain and here.left is not None and here.rows == _pixels(graph, here.left)


def _extents(graph: Graph, value: str) -> tuple[int, ...] | None:
    """The shape of images of float32, if it is known; of any number of images, that of one."""
    t = graph.types.get(value)
    if t is None or t.dtype != F32 or len(t.shape) != IMAGE:
        return None
    found = (t.shape[0].constant if t.shape[0].constant is not None else 1, *(e.constant or 0 for e in t.shape[1:]))
    return found if all(found) else None


def _pixels(graph: Graph, value: str) -> Index | None:
    """How many pixels some images of float32 have together; None where their shape is not known."""
    t = graph.types.get(value)
    return product([t.shape[0], *t.shape[2:]]) if t is not None and _extents(graph, value) is not None else None


def _window_of(kind: Kind, image: str) -> _Window | None:
    """The window of a kind; None if it does not go over lines."""
    (d, *others) = kind.definitions
    reduce = next((n for n in walk(d.value) if isinstance(n, Reduce)), None)
    reads = [x for x in loads(d.value) if x.source == image]
    if others or reduce is None or len(reads) != 1 or len(d.axes) != IMAGE:
        return None
    (read,), line = reads, d.axes[2]
    stride, lines = coefficient(read.index[2], line), reach(read.index[2], line)
    taps = product([r.extent for r in reduce.ranges]).constant
    known = stride is not None and stride.constant and taps
    if not known or lines is None or stride is None or taps is None or axes_of(read.index[1]) != {d.axes[1]}:
        return None
    return _Window(taps, lines[1] - lines[0] + 1, stride.constant or 1)


def _microseconds(
    first: ChainedProduct, image: tuple[int, ...], result: tuple[int, ...], window: _Window, target: Cpu
) -> tuple[float, float]:
    """Predicted times of a convolution and a window as two kernels and as one."""
    peak = target.cores * target.gflops * 1e3  # operations in a microsecond
    pixels, made = (e[0] * e[1] * e[2] * e[3] for e in (image, result))
    product_us = 2 * pixels * (first.depth.constant or 0) / peak
    window_us = 4 * made * window.taps / peak  # one vector in a cycle
    size, total = 4 * pixels, 4 * (pixels + made)
    inside = total <= target.l2_bytes * REUSABLE
    level = target.l3_gbps if total <= target.l3_bytes * REUSABLE else target.memory_gbps / target.cores
    moved = size * (1 - 1 / target.cores if inside else 1) / (target.cores * level * 1e3)
    near = (1 + STORED) * size / (target.cores * target.l2_gbps * 1e3)
    again = max(0, window.span - window.stride) * (target.cores - 1) / (image[0] * image[2])
    apart = _both(product_us, STORED * moved) + _both(window_us, moved) + target.barrier_us + target.dispatch_us
    return apart, product_us * (1 + again) + window_us + OVERLAP * near


def _both(computing: float, moving: float) -> float:
    """Time of computing and moving, which overlap in part."""
    return max(computing, moving) + OVERLAP * min(computing, moving)
