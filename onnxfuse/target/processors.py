"""Families of processors: the numbers from which times are predicted if the family of the machine is known.

Clocks are those sustained by all cores with their widest vectors. Rates are measured on one core where marked, else
derived from published figures: multiply-adds per cycle, bytes per cycle from each cache.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from pathlib import Path


@dataclass(frozen=True, slots=True)
class Processor:
    """A family: sizes in bytes, rates of one core (except `memory_gbps`), as in `Cpu`."""

    name: str
    lanes: int  # fp32 lanes of its vector units
    gflops: float  # fp32, with vectors of at least `lanes` lanes
    l1_bytes: int
    l2_bytes: int
    l3_bytes: int  # shared with other cores: of one die, or the part that a core can count on
    l2_gbps: float
    l3_gbps: float
    bandwidth: float
    memory_gbps: float
    stored: float = 2.0  # as in `Cpu`


_K, _M = 1 << 10, 1 << 20

PROCESSORS = {
    p.name: p
    for p in (
        Processor("haswell", 8, 100.0, 32 * _K, 256 * _K, 16 * _M, 90.0, 45.0, 11.0, 25.0),
        Processor("skylake-sp", 16, 153.0, 32 * _K, 1 * _M, 24 * _M, 190.0, 27.0, 12.0, 24.0),  # measured
        Processor("icelake-sp", 16, 170.0, 48 * _K, 1280 * _K, 32 * _M, 190.0, 30.0, 13.0, 26.0),
        Processor("sapphire-rapids", 16, 180.0, 48 * _K, 2 * _M, 48 * _M, 190.0, 30.0, 13.0, 26.0),
        Processor("alderlake", 8, 150.0, 48 * _K, 1280 * _K, 24 * _M, 200.0, 60.0, 30.0, 45.0),
        Processor("zen", 4, 40.0, 32 * _K, 512 * _K, 8 * _M, 75.0, 50.0, 16.0, 25.0),  # measured
        Processor("zen2", 8, 105.0, 32 * _K, 512 * _K, 16 * _M, 90.0, 60.0, 20.0, 30.0),
        Processor("zen3", 8, 94.0, 32 * _K, 512 * _K, 8 * _M, 95.0, 60.0, 11.0, 20.0, stored=1.2),  # beside neighbours
        Processor("zen4", 8, 118.0, 32 * _K, 1 * _M, 32 * _M, 115.0, 98.0, 30.0, 40.0, stored=1.0),  # caches measured
        Processor("zen5", 16, 250.0, 48 * _K, 1 * _M, 32 * _M, 250.0, 116.0, 40.0, 50.0),  # measured
        Processor("neoverse-n1", 4, 44.0, 64 * _K, 1 * _M, 32 * _M, 70.0, 30.0, 15.0, 25.0),
        Processor("neoverse-v1", 4, 83.0, 64 * _K, 1 * _M, 32 * _M, 80.0, 30.0, 20.0, 35.0),
        Processor("neoverse-v2", 4, 95.0, 64 * _K, 2 * _M, 36 * _M, 90.0, 35.0, 25.0, 40.0),
    )
}

# Models of Intel's family 6; AMD's are found by family (and features if a family has two), Arm's by part number.
_INTEL = {
    "haswell": (60, 61, 63, 69, 70, 71, 78, 79, 86, 94, 142, 158, 165, 166),
    "skylake-sp": (85,),
    "icelake-sp": (106, 108, 125, 126, 140, 141, 167),
    "sapphire-rapids": (143, 173, 174, 207),
    "alderlake": (151, 154, 170, 172, 181, 183, 186, 189, 191, 197, 198),
}
_ARM = {0xD0C: "neoverse-n1", 0xD40: "neoverse-v1", 0xD49: "neoverse-n1", 0xD4F: "neoverse-v2"}
_ZEN2 = 0x30  # the first model of AMD's family 23 with Zen 2
_NUMBERS = ("cpu family", "model", "CPU implementer", "CPU part")


@cache
def cpu_facts() -> dict[str, str]:
    """The entries of /proc/cpuinfo for the first core; empty if there is no such file."""
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines = (line.partition(":") for line in text.strip().split("\n\n")[0].splitlines())
    return {name.strip(): value.strip() for name, _, value in lines}


def processor_of(facts: dict[str, str]) -> Processor | None:
    """The processor family for entries of /proc/cpuinfo; None if it is not in the table."""
    numbers = {k: int(v, 0) for k, v in facts.items() if k in _NUMBERS and v[:1].isdigit()}
    family, model = numbers.get("cpu family"), numbers.get("model", 0)
    flags = facts.get("flags", "").split()
    name: str | None = None
    if facts.get("vendor_id") == "GenuineIntel" and family == 6:
        known = next((n for n, models in _INTEL.items() if model in models), None)
        name = "sapphire-rapids" if "amx_tile" in flags else known  # virtual machines may tell an older model
    elif facts.get("vendor_id") == "AuthenticAMD":
        wide = "avx512f" in flags
        names = {23: "zen2" if model >= _ZEN2 else "zen", 25: "zen4" if wide else "zen3", 26: "zen5"}
        name = names.get(family or 0)
    elif numbers.get("CPU implementer") == 0x41:
        name = _ARM.get(numbers.get("CPU part", 0))
    return PROCESSORS[name] if name is not None else None
