"""Faulty renderers: a kernel's first output is 1 % too large, or the kernel is slow."""

from __future__ import annotations

from dataclasses import replace

from onnxfuse.ir.kernel import Kernel
from onnxfuse.render.cpp import render
from onnxfuse.render.source import Source

HEADER = '#include "tile.h"\n'
WRONG = """
namespace onnxfuse {
template <class T> constexpr T too_much(T v) { return v * 1.01f; }
template <class T, class V, class L> ONNXFUSE_INLINE void store_lanes_wrong(T* p, V v, L lanes) {
  store_lanes(p, too_much(v), lanes);
}
template <class T, class L, class V, class F> ONNXFUSE_INLINE void put_each_lane_wrong(i64 j, L lanes, V v, F place) {
  put_each_lane<T>(j, lanes, too_much(v), place);
}
template <class T, class V> ONNXFUSE_INLINE void put_wrong(T* p, V v) { put(p, too_much(v)); }
}  // namespace onnxfuse
"""


class Planted:
    """Renders kernels, of those that store into their first output one by one the one of this number with a fault.

    `name` is its operator.
    """

    def __init__(self, number: int) -> None:
        self.number = number
        self.seen: list[str] = []

    @property
    def name(self) -> str:
        return self.seen[self.number]

    def __call__(self, kernel: Kernel, symbol: str, name: str, flags: tuple[str, ...]) -> Source:
        right = render(kernel, symbol, name, flags)
        faulty = wrong(right.text)
        if faulty != right.text and symbol not in self.seen:
            self.seen.append(symbol)
        return replace(right, text=faulty) if self.seen[self.number : self.number + 1] == [symbol] else right


class Slow:
    """Renders kernels, those whose names begin with one of `names` with a loop that does nothing for so many turns."""

    def __init__(self, *names: str, turns: int = 400_000) -> None:
        self.names, self.turns = names, turns

    def __call__(self, kernel: Kernel, symbol: str, name: str, flags: tuple[str, ...]) -> Source:
        right = render(kernel, symbol, name, flags)
        if not name.startswith(self.names):
            return right
        begin = "  Run_ run{};\n"
        assert right.text.count(begin) == 1, "the call of a kernel begins in another way"
        loop = f"  for (volatile long i = 0; i < {self.turns}; i = i + 1) {{}}\n"
        return replace(right, text=right.text.replace(begin, begin + loop))


def wrong(text: str) -> str:
    """The text of a kernel with all stores to its first output too large; the same where tiles store all of it."""
    lines = []
    for line in text.split("\n"):
        for call in ("store_lanes(", "put_each_lane<", "put("):
            if call in line and "(out0 + " in line.replace("return out0 + ", "(out0 + "):
                line = line.replace(call, f"{call[:-1]}_wrong{call[-1]}")
                break
        lines.append(line)
    made = "\n".join(lines)
    return made.replace(HEADER, HEADER + WRONG) if made != text else text
