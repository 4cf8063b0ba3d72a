"""What windows take of a GPU whose threads keep columns of elements in registers (`schedule/gpu/windows.py`).

Times are those of instructions: what a scheduler issues, what is fetched for the first time, and waits for loads. The
numbers were fitted to 404 kernels of depthwise convolutions and pools on an H200, whose times they give within 10 %
(rms), run again and again: of all heights those that take least by them are within 3 % of the best. In a network code
comes from farther away: there 216 to 728 instructions took 1.9 to 6.3 us.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnxfuse.target import Gpu

BLOCK = 128  # threads
TALLEST = 14  # results of a thread
MOST_LOADED = 32  # elements of a column
MOST_TERMS, MOST_CODE = 9, 200  # of a window that is spelled out: more code is fetched longer than turns of a loop take

LOADED, FIXED, STORED = 6.0, 2.0, 16.0  # instructions for an element, a weight, a result
OTHERS = 290.0  # and for all else of a thread: its place, and what its block waits for
WRITTEN = 5.0  # instructions of code for an element
WARM, COLD = 2.0, 8.0  # cycles of an instruction that is seen first: of a kernel that has just run, and in a network
ISSUED = 0.66  # and each time for each warp
ALONE = 1.1  # cycles from one instruction of a warp to the next
TURN = 200.0  # cycles of a turn that waits for its loads
SCHEDULERS, LANES = 4, 32  # of a multiprocessor, and threads of a warp
FLOPS_OF_CYCLE = 256.0  # of a multiprocessor


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """Windows of `along` x `across` terms for so many `results`, `extent` of which are in each column.

    A window begins `step` elements behind the one before, and its terms are `apart`. `columns` are read for each place
    across the window, and `fixed` values for each term; `before` are the functions applied to the elements of columns.
    """

    results: int
    extent: int
    along: int
    across: int
    step: int = 1
    apart: int = 1
    columns: int = 1
    fixed: int = 0
    before: int = 0

    def loaded(self, tall: int) -> int:
        """Elements of a column under so many results."""
        return (tall - 1) * self.step + (self.along - 1) * self.apart + 1

    def unrolled(self, tall: int) -> bool:
        """Whether the places across the window are spelled out."""
        few = self.along * self.across <= MOST_TERMS
        return few and self.across * self._turn(tall, WRITTEN) <= MOST_CODE

    @property
    def heights(self) -> Iterator[int]:
        """Results that a thread may have: they divide those of a column."""
        for tall in range(1, min(self.extent, TALLEST) + 1):
            if self.extent % tall == 0 and (tall == 1 or self.loaded(tall) <= MOST_LOADED):
                yield tall

    def _turn(self, tall: int, element: float) -> float:
        """Instructions for a place across the window, where an element of a column takes so many."""
        each = self.columns * element + self.before
        return each * self.loaded(tall) + FIXED * self.along * self.fixed + tall * self.along

    def cycles(self, tall: int, fetched: float, sms: int) -> float:
        """Cycles of the windows on so many multiprocessors, where an instruction is `fetched` in so many."""
        turns = 1 if self.unrolled(tall) else self.across
        begin_and_end = STORED * tall + OTHERS
        blocks = -(-self.results // (tall * BLOCK))
        warps = -(-blocks // sms) * BLOCK / LANES / SCHEDULERS
        code = self._turn(tall, WRITTEN) * self.across / turns + begin_and_end
        run = self._turn(tall, LOADED) * self.across + begin_and_end
        return fetched * code + max(ALONE, ISSUED * warps) * run + TURN * turns


def best_height(w: WindowSizes, target: Gpu) -> int:
    """Results of a thread that are predicted to take least in a network."""
    return min(w.heights, key=lambda tall: w.cycles(tall, COLD, target.sms))


def seconds_of(w: WindowSizes, tall: int, target: Gpu, *, fetched: float = COLD) -> float:
    """Seconds of such windows, without what lies between two kernels."""
    return w.cycles(tall, fetched, target.sms) / (target.gflops * 1e9 / (target.sms * FLOPS_OF_CYCLE))
