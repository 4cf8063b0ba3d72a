"""Layouts of shared memory that wgmma reads, as the PTX manual has them, and whether a device agrees."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.gpu.wgmma.here import LEFT_ROOM, RIGHT_ROOM, Here
from benchmarks.gpu.wgmma.kernels import WIDTHS, Row

STEP = 16  # of the depth, of an instruction

Array = npt.NDArray[Any]


@dataclass(frozen=True)
class Layout:
    """How one side lies in shared memory: `lines` rows or columns by `depth`; `major` k: the depth lies side by side.

    `swizzle`: bytes within which pieces of 16 bytes trade places; 0: groups of eight lines or steps lie together, and
    16 bytes more than needed are between those of neighbouring pieces.
    """

    major: str
    swizzle: int
    lines: int

    @property
    def depth(self) -> int:
        """As far as one pattern goes."""
        return self.swizzle // 2 if self.major == "k" and self.swizzle else 64

    @property
    def offsets(self) -> tuple[int, int]:
        """The leading and the stride offset, in bytes, as the manual has them."""
        if not self.swizzle:
            return (self.lines * 16 + 16, 128) if self.major == "k" else (128, self.depth * 16 + 16)
        return (16 if self.major == "k" else self.depth * self.swizzle), 8 * self.swizzle

    @property
    def ahead(self) -> int:
        """Bytes from a step of the depth to the next."""
        if not self.swizzle:
            return 2 * self.offsets[0]
        return 2 * STEP if self.major == "k" else STEP * self.swizzle

    def place(self, line: Any, k: Any) -> Any:
        """Where an element lies, in bytes."""
        leading, stride = self.offsets
        if not self.swizzle:
            along, across = (k, line) if self.major == "k" else (line, k)
            pieces, groups = (leading, stride) if self.major == "k" else (stride, leading)
            return along // 8 * pieces + across // 8 * groups + across % 8 * 16 + along % 8 * 2
        if self.major == "k":
            at = line // 8 * stride + line % 8 * self.swizzle + k * 2
        else:
            wide = self.swizzle // 2
            at = line // wide * leading + k // 8 * stride + k % 8 * self.swizzle + line % wide * 2
        return at ^ (at >> 7 & self.swizzle // 16 - 1) << 4

    def image(self, values: Array, room: int) -> Array:
        """Shared memory with values [lines, depth], 16 bits each."""
        made = np.zeros(room // 2, np.uint16)
        line, k = np.indices(values.shape)
        made[self.place(line, k) // 2] = values.view(np.uint16)
        return made

    def form(self, *, swapped: bool) -> int:
        """The descriptor without its address."""
        leading, stride = self.offsets[::-1] if swapped else self.offsets
        kind = {0: 0, 128: 1, 64: 2, 32: 3}[self.swizzle]
        return leading >> 4 << 16 | stride >> 4 << 32 | kind << 62


def of_sums(raw: Array, width: int) -> Array:
    """Rows by columns of what threads have in registers [128, width / 2], by the table of the PTX manual."""
    thread, register = np.indices(raw.shape)
    made = np.full((64, width), np.nan)
    rows = thread // 32 * 16 + thread % 32 // 4 + register // 2 % 2 * 8
    made[rows, register // 4 * 8 + thread % 4 * 2 + register % 2] = raw
    return made


def of_left(values: Array) -> Array:
    """Registers [128, 4] of two elements each of a left side [64, 16], by the table of the PTX manual."""
    thread, element = np.indices((128, 8))
    rows = thread // 32 * 16 + thread % 32 // 4 + element // 2 % 2 * 8
    columns = element // 4 * 8 + thread % 4 * 2 + element % 2
    return np.ascontiguousarray(values.astype(np.float16)[rows, columns])


NOTHING = np.zeros(LEFT_ROOM // 2, np.uint16)


def layouts(here: Here) -> Iterator[tuple[str, Row]]:
    """For each layout and descriptor whether elements come from where they should; then products in those that work."""
    identity, good = np.zeros((64, STEP)), dict[tuple[str, int], bool]()
    identity[np.arange(STEP), np.arange(STEP)] = 1
    for major in "kn":
        for swizzle in (0, 32, 64, 128):
            for swapped in (False, True):
                form = Layout(major, swizzle, 128)
                steps = range(form.depth // STEP) if swizzle != 32 or major == "n" else (0,)
                found = [_read_out(here, form, swapped, step, identity) for step in steps]
                as_said = all(x["right"] for x in found)
                if as_said and (major, swizzle) not in good:
                    good[major, swizzle] = swapped
                yield f"right side {major}, {swizzle} bytes, {'swapped' if swapped else 'as documented'}", (
                    {"right": True} if as_said else {"right": False, "steps": found})  # fmt: skip
    for swizzle in (0, 32, 64, 128):
        for swapped in (False, True):
            name = f"left side k, {swizzle} bytes, {'swapped' if swapped else 'as documented'}"
            yield name, _left_read_out(here, Layout("k", swizzle, 64), swapped, good)
    rng = np.random.default_rng(0)
    for (major, swizzle), swapped in good.items():
        for width in WIDTHS:
            if swizzle // 2 and width % (swizzle // 2) and major == "n":
                continue
            a, b = (
                rng.standard_normal((64, STEP)).astype(np.float16),
                rng.standard_normal((width, STEP)).astype(np.float16),
            )
            left, right = Layout("k", swizzle, 64), Layout(major, swizzle, width)
            forms = left.form(swapped=False), right.form(swapped=swapped)
            images = left.image(a, LEFT_ROOM), right.image(b, RIGHT_ROOM)
            wanted = a.astype(np.float64) @ b.T.astype(np.float64)
            errors = []
            for registers in (0, 1):
                raw = here.sums(f"layout {width} {major} {registers}", *images, of_left(a), *forms, 0, 0)
                errors.append(float(np.abs(of_sums(raw, width) - wanted).max()))
            yield f"product n{width} {major}, {swizzle} bytes", {"error": errors[0], "of registers": errors[1]}
    left, right = Layout("k", 0, 64), Layout("n", 0, 64)
    a, b = (_rounded(rng.standard_normal((64, STEP))) for _ in range(2))
    images = left.image(_as_bfloat(a), LEFT_ROOM), right.image(_as_bfloat(b), RIGHT_ROOM)
    raw = here.sums("layout 64 n 0 bf16", *images, NOTHING, left.form(swapped=False), right.form(swapped=False), 0, 0)
    yield "product n64 n, 0 bytes, bf16", {"error": float(np.abs(of_sums(raw, 64) - a @ b.T).max())}


def _rounded(x: Array) -> Array:
    return (x.astype(np.float32).view(np.uint32) & 0xFFFF0000).view(np.float32).astype(np.float64)


def _as_bfloat(x: Array) -> Array:
    return (x.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)


def _numbered(room: int) -> tuple[Array, Array]:
    """Images whose elements are their own places, in two parts that 16 bits hold."""
    number = np.arange(room // 2)
    return tuple(x.astype(np.float16).view(np.uint16) for x in (number % 1024, number // 1024))  # type: ignore[return-value]  # two


def _read_out(here: Here, form: Layout, swapped: bool, step: int, identity: Array) -> Row:
    """Where elements of a right side come from."""
    name, forms = f"layout {form.lines} {form.major} 1", (0, form.form(swapped=swapped))
    low, high = (
        of_sums(here.sums(name, NOTHING, image, of_left(identity), *forms, 0, step * form.ahead), form.lines)
        for image in _numbered(RIGHT_ROOM)
    )
    return _compared((low + 1024 * high)[:STEP].T, form, step)


def _left_read_out(here: Here, form: Layout, swapped: bool, good: Mapping[tuple[str, int], bool]) -> Row:
    """Where elements of a left side come from, step by step."""
    if not good:
        return {"right": False, "why": "no right side is right"}
    (major, swizzle), right_swapped = next(iter(good.items()))
    right, found = Layout(major, swizzle, 64), []
    identity = np.zeros((64, STEP), np.float16)
    identity[np.arange(STEP), np.arange(STEP)] = 1
    image, forms = right.image(identity, RIGHT_ROOM), (form.form(swapped=swapped), right.form(swapped=right_swapped))
    for step in range(form.depth // STEP):
        low, high = (
            of_sums(here.sums(f"layout 64 {major} 0", one, image, NOTHING, *forms, step * form.ahead, 0), 64)
            for one in _numbered(LEFT_ROOM)
        )
        found.append(_compared((low + 1024 * high)[:, :STEP], form, step))
    as_said = all(x["right"] for x in found)
    return {"right": True} if as_said else {"right": False, "steps": found}


def _compared(got: Array, form: Layout, step: int) -> Row:
    """Places [lines, 16] in elements as they are and as they should be; those of powers of two where they differ."""
    line, k = np.indices(got.shape)
    wanted = form.place(line, k + STEP * step) // 2
    if np.array_equal(got, wanted):
        return {"right": True}
    lines, steps = [2**n for n in range(8) if 2**n < form.lines], [1, 2, 4, 8]
    return {
        "right": False,
        "first": float(got[0, 0]),
        "lines": {n: [float(got[n, 0]), int(wanted[n, 0])] for n in lines},
        "steps": {n: [float(got[0, n]), int(wanted[0, n])] for n in steps},
        "differ": int((got != wanted).sum()),
    }
