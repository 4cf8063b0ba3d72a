"""Convolutions that cuDNN may compute in place of a phase, all operands channels last in memory.

A convolution is left to it where its filters are stored channels last, which the caller decides (`filters_last`). An
image that lies otherwise is turned before, a result behind; what follows the sums and is no epilogue of the call
(activation(sum + bias + residual)) is computed behind it.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace

from onnxfuse.cost.library_convolutions import Convolution, Shapes, convolution_of, same_index, without_unit_axes
from onnxfuse.cost.library_products import MARK, Epilogue, epilogue_of, uncast
from onnxfuse.ir.compose import inline, rebuild, replaced, size, sources, substitute_axes, walk
from onnxfuse.ir.index import Axis, Index
from onnxfuse.ir.indexing import flatten, product
from onnxfuse.ir.kernel import Param
from onnxfuse.ir.launch import LibraryConvolution
from onnxfuse.ir.layout import Layout, channels_last
from onnxfuse.ir.scalar import Load, Reduce, Scalar
from onnxfuse.lower import Lowered
from onnxfuse.ops.spec import Definition
from onnxfuse.schedule.analysis.canonical import Canonical


@dataclass(frozen=True, slots=True)
class LeftToLibrary:
    """Definitions with convolutions apart, and the calls that may compute them, by name."""

    definitions: tuple[Definition, ...]
    calls: Mapping[str, LibraryConvolution]


def filters_last(lowered: Lowered, constants: Container[str]) -> dict[str, Layout]:
    """The layouts of constant filters of the convolutions that cuDNN may compute, of one group each."""
    shapes = {v: t.shape for v, t in lowered.types.items()} | {d.name: d.shape for d in lowered.definitions}
    found = [convolution_of(without_unit_axes(d), shapes) for d in lowered.definitions]
    return {
        c.weights.source: channels_last(len(c.weights.index))
        for c in found
        if c is not None and c.groups == 1 and c.weights.source in constants
    }


def left_to_library(c: Canonical) -> LeftToLibrary:
    """The definitions of a kernel, with those convolutions apart whose filters are stored channels last."""
    return _Rewriting(c).run()


class _Rewriting:
    """One kernel's definitions, in order; each convolution is up to three."""

    def __init__(self, c: Canonical) -> None:
        self.params: dict[str, Param] = {p.name: p for p in (*c.inputs, *c.outputs)}
        self.outputs = {p.name for p in c.outputs}
        self.given = c.definitions
        self.shapes: Shapes = {p.name: p.shape for p in self.params.values()} | {d.name: d.shape for d in c.definitions}
        self.made: list[Definition] = []
        self.calls: dict[str, LibraryConvolution] = {}
        self.put_in: dict[str, tuple[tuple[Axis, ...], Scalar]] = {}

    def run(self) -> LeftToLibrary:
        """All definitions."""
        for each in self.given:
            d = replace(each, value=inline(each.value, self.put_in)) if self.put_in else each
            plain = without_unit_axes(d)
            found = convolution_of(plain, self.shapes)
            if found is not None and self._last(found.weights.source):
                self._convolution(plain, found)
            else:
                self.made.append(d)
        return LeftToLibrary(tuple(self.made), self.calls)

    def _last(self, name: str) -> bool:
        """Whether a tensor lies channels last."""
        p = self.params.get(name)
        return p is not None and p.layout == channels_last(len(p.shape))

    def _convolution(self, d: Definition, c: Convolution) -> None:
        part, epilogue = next(self._parts(d, c))
        image = c.image.source if self._last(c.image.source) else self._turned(d, c)
        whole = part == d.value and d.name in self.outputs and self._last(d.name)
        name = d.name if whole else f"{d.name} convolved"
        value = part if image == c.image.source else _read(part, c.image, image)
        last = (d.axes[0], *d.axes[2:], d.axes[1])
        self.made.append(replace(d, value=value) if whole else Definition(name, last, value))
        self.calls[name] = LibraryConvolution(
            d.value.dtype, c.batch, c.channels, c.size, c.filters, c.window, c.made, c.strides, c.pads, c.dilations,
            c.groups, image, c.weights.source, name, epilogue.bias.source if epilogue.bias is not None else "",
            epilogue.residual.source if epilogue.residual is not None else "", epilogue.activation,
        )  # fmt: skip
        if whole:
            return
        rest = replaced(d.value, part, Load(name, tuple(map(Index.of, last)), part.dtype))
        if isinstance(rest, Load) and d.name not in self.outputs:
            self.put_in[d.name] = (d.axes, rest)
        else:
            self.made.append(replace(d, value=rest))

    def _parts(self, d: Definition, c: Convolution) -> Iterator[tuple[Scalar, Epilogue]]:
        """Parts of a value that the call may compute: the sums, or an epilogue with a bias.

        The largest first, but those last behind which the sums would be computed once more.
        """
        parts = [n for n in walk(d.value) if n.dtype == d.value.dtype and c.total in walk(n)]
        for part in sorted(parts, key=lambda n: (c.total in walk(replaced(d.value, n, MARK)), -size(n))):
            if uncast(part) == uncast(c.total):
                yield part, Epilogue(None, None, "")
            found = epilogue_of(part, c.total, d.axes[1:2])
            if found is None or found.activation == "gelu" or not self._is_bias(found.bias, d, c):
                continue
            if found.residual is None or self._is_residual(found.residual, d):
                yield part, found

    def _is_bias(self, x: Load | None, d: Definition, c: Convolution) -> bool:
        """Whether a value is one number for each filter, from the beginning of a buffer on."""
        p = self.params.get(x.source) if x is not None else None
        if x is None or p is None or p.layout.steps or x.dtype != d.value.dtype:
            return False
        return flatten(x.index, p.shape) == Index.of(d.axes[1]) and product(p.shape).constant == c.filters

    def _is_residual(self, x: Load, d: Definition) -> bool:
        """Whether a value is a tensor as the result is, channels last too."""
        same = x.dtype == d.value.dtype and self.shapes.get(x.source) == d.shape and x.source not in self.outputs
        return same and self._last(x.source) and same_index(x.index, tuple(map(Index.of, d.axes)), d.axes)

    def _turned(self, d: Definition, c: Convolution) -> str:
        """The name of a copy of the image, channels last; of its definition where nothing else reads that."""
        source, name = c.image.source, f"{d.name} image"
        axes = tuple(Axis(f"{d.name}_i{k}", e) for k, e in enumerate(self.shapes[source]))
        value: Scalar = Load(source, tuple(map(Index.of, axes)), c.image.dtype)
        before = next((e for e in self.made if e.name == source), None)
        readers = [e for e in self.given if source in sources(e.value)]
        if before is not None and source not in self.outputs and len(readers) == 1 and source not in self.calls:
            self.made.remove(before)
            value = substitute_axes(before.value, dict(zip(before.axes, map(Index.of, axes), strict=True)))
        self.made.append(Definition(name, (axes[0], *axes[2:], axes[1]), value))
        return name


def _read(x: Scalar, image: Load, name: str) -> Scalar:
    """x, with an image read from its copy, channels last."""

    def leaf(node: Scalar) -> Scalar | None:
        if node != image:
            return None
        n, c, *rest = image.index
        return replace(image, source=name, index=(n, *rest, c))

    def within(node: Scalar) -> Scalar | None:
        if isinstance(node, Reduce):
            return replace(node, body=tuple(rebuild(b, leaf, lambda e: e) for b in node.body))
        return None

    return rebuild(x, within, lambda e: e)
