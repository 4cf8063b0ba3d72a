"""What Python and C++ have to agree on, and the header that says it to C++: `tiles/agreed.h` is written from here.

Each number stands where it is explained in Python, and nowhere else; `scripts/agreed.py` writes the header.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from onnxfuse.ir import functions, lanes, products, tasks, tile
from onnxfuse.ir.indexing import WIDEST
from onnxfuse.runtime import entries
from onnxfuse.target import CPUS, ISA, REQUEST_PERMISSION, TILE_DATA, Cpu
from onnxfuse.target.cpu import TILE_VECTORS

MEASURES = ("NOTHING", "MULTIPLY_ADD", "READ", "WAIT")  # what the kernel of calibration is asked for, by number
NOTHING, MULTIPLY_ADD, READ, WAIT = range(len(MEASURES))


@dataclass(frozen=True, slots=True)
class Agreed:
    """A constant of the header: an integer or a text, and what it means."""

    name: str
    value: int | str
    meaning: str


AGREED = (
    Agreed("ABI_VERSION", entries.ABI_VERSION, "of the runtime's C interface; the oldest runtime is 1.ABI_VERSION"),
    Agreed("ALIGNMENT", tasks.ALIGNMENT, "bytes: of every buffer of a run and of a task"),
    Agreed("AMX_PIECE", products.AMX.piece, "bytes of a row that one product of the matrix unit takes"),
    Agreed("AMX_ROWS", products.AMX.rows, "rows of a tile of the matrix unit at most"),
    Agreed("AMX_SIDE", tile.UNIT_SIDE, "rows and columns of one of its registers"),
    Agreed("CARRIED", lanes.CARRIED, "vectors of one reduction that are carried side by side"),
    Agreed("DISABLE", entries.DISABLE, "the session config entry that names kernels not to be run"),
    Agreed("EVEN_ENTRIES", tile.EVEN_ENTRIES, "of a segment of even rows in a table of pointers"),
    Agreed("FARTHEST", lanes.FARTHEST, "distance from lane to lane up to which whole vectors are read"),
    Agreed("ISA", ISA, "the environment variable that allows a library one instruction set only"),
    Agreed("LEAST_POWER", functions.LEAST_POWER, "of e, below which exp_or_zero is 0"),
    Agreed("PAIR", products.PAIR, "steps of bfloat16 that lie side by side"),
    Agreed("PLENTY", tasks.PLENTY, "tasks of a core with which the second axis is not divided any more"),
    Agreed("QUAD", products.QUAD, "steps of codes that lie side by side"),
    Agreed("REGISTERED", entries.REGISTERED, "what a library says in its entry where it is used, and for what"),
    Agreed("REQUEST_PERMISSION", REQUEST_PERMISSION, "of arch_prctl: to use a feature of the processor"),
    Agreed("SLOTS", tasks.SLOTS, "of a run's memory for local buffers, at most"),
    Agreed("STATUS", entries.STATUS, "behind a domain: the session config entry that says whether its kernels run"),
    Agreed("TASK", tasks.TASK, "picoseconds of work for which a task is started"),
    Agreed("TASKS", tasks.TASKS, "of a core, at most"),
    Agreed("TILE_DATA", TILE_DATA, "the feature that is asked for, and its bit in XCR0"),
    Agreed("TILE_VECTORS", TILE_VECTORS, "of a row of a register tile"),
    Agreed("WIDEST", WIDEST, "lanes of a vector at most"),
    Agreed("ZERO_ROW", tile.ZERO_ROW, "elements of padding that a row pointer may stand for"),
)

_HEAD = """\
// What C++ and Python have to agree on. Written by scripts/agreed.py from onnxfuse/render/agreed.py: not to be edited.
#pragma once

namespace onnxfuse {
namespace agreed {
"""


def header() -> str:
    """The whole header."""
    lines = [_constant(each) for each in AGREED]
    asked = f"enum {{ {', '.join(MEASURES)} }};  // what the kernel of calibration is asked for"
    tail = ["}  // namespace agreed", "}  // namespace onnxfuse", ""]
    return "\n".join([_HEAD, *lines, "", asked, "", *_tile_rows(), "", *tail])


def _constant(each: Agreed) -> str:
    if isinstance(each.value, str):
        return f'constexpr char {each.name}[] = "{each.value}";  // {each.meaning}'
    return f"constexpr int {each.name} = {each.value};  // {each.meaning}"


def _tile_rows() -> Iterator[str]:
    """A function for the rows of register tiles; those of the classes of one architecture come before all others."""
    yield "// Rows of a register tile at most, by the lanes of a vector."
    yield "constexpr int tile_rows(int lanes) {"
    found = {(_own(row), row.lanes): row.rows for row in CPUS.values()}
    assert all(found[_own(row), row.lanes] == row.rows for row in CPUS.values()), "rows follow from lanes"
    for (machine, count), rows in sorted(found.items(), reverse=True):
        line = f"  if (lanes == {count}) return {rows};"
        yield from (f"#if defined(__{machine}__)", line, "#endif") if machine else (line,)
    yield from ("  return 0;", "}")


def _own(row: Cpu) -> str:
    """The architecture of a machine class whose tiles have rows of their own; empty for others."""
    return row.machine if row.machine == "aarch64" else ""
