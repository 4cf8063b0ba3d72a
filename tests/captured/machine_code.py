"""Instructions of compiled device code, by their opcodes (nvdisasm): the low twelve bits of sixteen bytes."""

from __future__ import annotations

import struct
from collections.abc import Iterator

WAITS = 0x82E  # ACQBULK, griddepcontrol.wait
GLOBAL = {
    0x980: "LD", 0x981: "LDG", 0x985: "ST", 0x986: "STG", 0x98E: "RED", 0x9A8: "ATOMG", 0x3A9: "ATOMG.CAS",
    0xFAE: "LDGSTS",
}  # fmt: skip
BYTES = 16


def opcodes(cubin: bytes, function: str) -> Iterator[int]:
    """The opcodes of a function, in order."""
    (sections,) = struct.unpack_from("<Q", cubin, 40)
    size, count, names = struct.unpack_from("<HHH", cubin, 58)
    rows = [struct.unpack_from("<IIQQQQ", cubin, sections + i * size) for i in range(count)]
    text = rows[names][4]
    for name, _, _, _, offset, length in rows:
        begin = text + name
        if cubin[begin : cubin.index(b"\0", begin)].decode() == f".text.{function}":
            for at in range(offset, offset + length, BYTES):
                yield struct.unpack_from("<H", cubin, at)[0] & 0xFFF


def before_the_wait(cubin: bytes, function: str) -> set[str] | None:
    """The accesses of global memory that come before a function waits for the kernel before it; None: it never does."""
    found: set[str] = set()
    for opcode in opcodes(cubin, function):
        if opcode == WAITS:
            return found
        found |= {GLOBAL[opcode]} if opcode in GLOBAL else set()
    return None
