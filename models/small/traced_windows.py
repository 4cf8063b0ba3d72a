"""Windows of images as tracing wrote them: every extent read from a shape, divided, cast and put together again."""

from __future__ import annotations

import numpy as np
from onnx import TensorProto, numpy_helper

from models.net import Net
from models.parts import reversed_pairs

ORDER = (0, 1, 3, 2, 4, 5)  # rows and columns of windows, then of places


def missing(net: Net, size: int, window: int) -> tuple[str, str]:
    """How many rows and columns an image lacks to be a whole number of windows, computed once for a stage."""
    found = []
    for _ in range(2):
        over = net.node("Mod", net.constant(size), net.constant(window), fmod=0)
        rest = net.node("Sub", net.constant(window), over)
        found.append(net.node("Mod", rest, net.constant(window), fmod=0))
    return found[0], found[1]


class Windows:
    """The windows of one block; extents of a value that were read once are not read again."""

    def __init__(self, net: Net, window: int) -> None:
        self.net, self.window = net, window
        self._known: dict[tuple[str, object], str] = {}

    def pad(self, image: str, lacking: tuple[str, str]) -> str:
        """The image with rows and columns added at the end, none where none are lacking."""
        net = self.net
        pads = [self._pads(lacking) for _ in range(2)]
        count = net.node("Gather", net.node("Shape", pads[0]), net.constant([0]), axis=0)
        zeros = net.node(
            "ConstantOfShape",
            net.node("Sub", net.constant(8), count),
            value=numpy_helper.from_array(np.zeros(1, np.int64)),
        )
        pairs = net.node("Concat", net.node("Cast", pads[1], to=TensorProto.INT64), zeros, axis=0)
        return net.node("Pad", image, reversed_pairs(net, pairs), "", mode="constant")

    def _pads(self, lacking: tuple[str, str]) -> str:
        net = self.net
        first = [net.constant([0]) for _ in range(3)]
        right, below = (net.node("Unsqueeze", extent, axes=[0]) for extent in lacking)
        return net.node("Concat", *first, right, net.constant([0]), below, axis=0)

    def extent(self, x: str, axis: int) -> str:
        """One extent of x, a scalar."""
        if (x, axis) not in self._known:
            self._known[x, axis] = self.net.node("Gather", self.net.node("Shape", x), self.net.constant(axis), axis=0)
        return self._known[x, axis]

    def _divided(self, extent: str) -> str:
        if (extent, "windows") not in self._known:
            found = self.net.node("Div", extent, self.net.constant(self.window))
            for _ in range(2):
                found = self.net.node("Cast", found, to=TensorProto.INT64)
            self._known[extent, "windows"] = found
        return self._known[extent, "windows"]

    def shape(self, *extents: str | int) -> str:
        """A shape of scalars and numbers."""
        parts = [
            self.net.constant([extent]) if isinstance(extent, int) else self.net.node("Unsqueeze", extent, axes=[0])
            for extent in extents
        ]
        return self.net.node("Concat", *parts, axis=0)

    def partition(self, image: str) -> str:
        """(batch, height, width, channels) as (windows of the batch, window, window, channels)."""
        net, side = self.net, self.window
        height, width, batch, channels = (self.extent(image, axis) for axis in (1, 2, 0, 3))
        rows, columns = self._divided(height), self._divided(width)
        apart = net.node("Reshape", image, self.shape(batch, rows, side, columns, side, channels))
        turned = net.node("Transpose", apart, perm=ORDER)
        return net.node("Reshape", turned, self.shape(-1, side, side, channels))

    def together(self, windows: str, height: str, width: str) -> str:
        """The way back, to images of this height and width."""
        net, side = self.net, self.window
        channels = self.extent(windows, 3)
        rows, columns = self._divided(height), self._divided(width)
        apart = net.node("Reshape", windows, self.shape(-1, rows, columns, side, side, channels))
        turned = net.node("Transpose", apart, perm=ORDER)
        return net.node("Reshape", turned, self.shape(-1, height, width, channels))

    def mask(self, height: str, width: str, shift: int, hidden: float) -> str:
        """`hidden` where places of a window were not neighbours before the roll: (windows, area, area)."""
        net = self.net
        down, right = (self._regions(extent, shift) for extent in (height, width))
        for axis in (0, 2, 3):
            down = net.node("Unsqueeze", down, axes=[axis])
        down = net.node("Mul", down, net.constant(3))
        for axis in (0, 1, 3):
            right = net.node("Unsqueeze", right, axes=[axis])
        image = net.node("Cast", net.node("Add", down, right), to=TensorProto.FLOAT)
        flat = net.node("Reshape", self.partition(image), net.constant([-1, self.window**2]))
        differ = net.node("Sub", net.node("Unsqueeze", flat, axes=[1]), net.node("Unsqueeze", flat, axes=[2]))
        other = net.node("Not", net.node("Equal", differ, net.constant(0.0)))
        other = net.node("Cast", other, to=TensorProto.BOOL)
        mask = net.node("Where", other, net.constant(hidden), differ)
        same = net.node("Cast", net.node("Equal", differ, net.constant(0.0)), to=TensorProto.BOOL)
        return net.node("Where", same, net.constant(0.0), mask)

    def _regions(self, extent: str, shift: int) -> str:
        """By place: 0, 1 in the last window, 2 in the last `shift` places of it."""
        net = self.net
        end = net.node("Cast", extent, to=TensorProto.INT64)
        count = net.node("Range", net.constant(0), end, net.constant(1))
        parts = []
        for last in (self.window, shift):
            first = net.node("Sub", extent, net.constant(last))
            inside = net.node("GreaterOrEqual", count, first)
            parts.append(net.node("Cast", inside, to=TensorProto.INT64))
        return net.node("Add", *parts)

    def repeated(self, mask: str, windows: str, area: str) -> str:
        """The mask of one image for every image of the batch: (windows of the batch, 1, area, area)."""
        net = self.net
        batch = net.node("Div", windows, self.extent(mask, 0))
        for _ in range(2):
            batch = net.node("Cast", batch, to=TensorProto.INT64)
        for axis in (1, 0):
            mask = net.node("Unsqueeze", mask, axes=[axis])
        wanted = net.node("Reshape", self.shape(batch, -1, -1, -1, -1), net.constant([-1]))
        ones = net.node(
            "ConstantOfShape", net.node("Shape", wanted), value=numpy_helper.from_array(np.ones(1, np.int64))
        )
        same = net.node("Equal", wanted, net.node("Mul", ones, net.constant(-1)))
        every = net.node("Expand", mask, net.node("Where", same, ones, wanted))
        return net.node("Reshape", every, self.shape(-1, 1, area, area))
