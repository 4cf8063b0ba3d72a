"""What windows take of a GPU whose threads keep columns of elements in registers (`schedule/gpu/windows.py`).

Times are those of instructions: what a scheduler issues, what is fetched for the first time, and waits for loads. The
numbers were fitted to 57 prototypes of depthwise convolutions on an H100, whose times they give within 10 % (rms).
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnxfuse.target import Gpu

BLOCK = 128  # threads
TALLEST = 14  # results of a thread
MOST_LOADED = 32  # elements of a column
MOST_UNROLLED = 9  # terms of a window: the code of more is fetched longer than turns of a loop take

LOADED, FIXED, STORED = 16.0, 2.0, 12.0  # instructions for an element, a weight, a result
OTHERS = 60.0  # and for all else
FETCHED, ISSUED = 0.8, 0.6  # cycles of an instruction, when it is seen first, and each time for each warp
ALONE = 1.3  # cycles from one instruction of a warp to the next
TURN = 200.0  # cycles of a turn that waits for its loads
SCHEDULERS, LANES = 4, 32  # of a multiprocessor, and threads of a warp
FLOPS_OF_CYCLE = 256.0  # of a multiprocessor


@dataclass(frozen=True, slots=True)
class WindowSizes:
    """Windows of `along` x `across` terms for so many `results`, `extent` of which are in each column.

    A window begins `step` elements behind the one before, and its terms are `apart`. `columns` are read for each place
    across the window, and `fixed` values for each term.
    """

    results: int
    extent: int
    along: int
    across: int
    step: int = 1
    apart: int = 1
    columns: int = 1
    fixed: int = 0

    def loaded(self, tall: int) -> int:
        """Elements of a column under so many results."""
        return (tall - 1) * self.step + (self.along - 1) * self.apart + 1

    @property
    def unrolled(self) -> bool:
        """Whether the places across the window are spelled out."""
        return self.along * self.across <= MOST_UNROLLED

    @property
    def heights(self) -> Iterator[int]:
        """Results that a thread may have: they divide those of a column."""
        for tall in range(1, min(self.extent, TALLEST) + 1):
            if self.extent % tall == 0 and (tall == 1 or self.loaded(tall) <= MOST_LOADED):
                yield tall


def best_height(w: WindowSizes, target: Gpu) -> int:
    """Results of a thread that are predicted to take least."""
    return min(w.heights, key=lambda tall: seconds_of(w, tall, target))


def seconds_of(w: WindowSizes, tall: int, target: Gpu) -> float:
    """Seconds of such windows, without what lies between two kernels."""
    turn = w.columns * LOADED * w.loaded(tall) + FIXED * w.along * w.fixed + tall * w.along
    begin_and_end = STORED * tall + OTHERS
    blocks = -(-w.results // (tall * BLOCK))
    warps = -(-blocks // target.sms) * BLOCK / LANES / SCHEDULERS
    code = turn * (w.across if w.unrolled else 1) + begin_and_end
    run = turn * w.across + begin_and_end
    cycles = FETCHED * code + max(ALONE, ISSUED * warps) * run + TURN * (1 if w.unrolled else w.across)
    return cycles / (target.gflops * 1e9 / (target.sms * FLOPS_OF_CYCLE))
