"""Processor families, recognized from what Linux reports of a core, and the figures they give a machine class."""

import pytest

from onnxfuse.target import CPUS, targets_of
from onnxfuse.target.processors import PROCESSORS, processor_of

INTEL, AMD = {"vendor_id": "GenuineIntel"}, {"vendor_id": "AuthenticAMD"}


@pytest.mark.parametrize(
    ("facts", "name"),
    [
        (INTEL | {"cpu family": "6", "model": "85"}, "skylake-sp"),
        (INTEL | {"cpu family": "6", "model": "106"}, "icelake-sp"),
        (INTEL | {"cpu family": "6", "model": "143"}, "sapphire-rapids"),
        (INTEL | {"cpu family": "6", "model": "167", "flags": "avx512f"}, "icelake-sp"),
        (INTEL | {"cpu family": "6", "model": "167", "flags": "avx512f amx_tile"}, "sapphire-rapids"),
        (INTEL | {"cpu family": "15", "model": "6"}, None),
        (AMD | {"cpu family": "23", "model": "1", "flags": "avx2"}, "zen"),
        (AMD | {"cpu family": "23", "model": "49", "flags": "avx2"}, "zen2"),
        (AMD | {"cpu family": "25", "model": "1", "flags": "avx2"}, "zen3"),
        (AMD | {"cpu family": "25", "model": "17", "flags": "avx2 avx512f"}, "zen4"),
        (AMD | {"cpu family": "26", "model": "2", "flags": "avx2 avx512f"}, "zen5"),
        ({"CPU implementer": "0x41", "CPU part": "0xd40"}, "neoverse-v1"),
        ({"CPU implementer": "0x61", "CPU part": "0x022"}, None),
        ({"vendor_id": "GenuineIntel", "cpu family": "unknown"}, None),
        ({}, None),
    ],
)
def test_a_core_is_of_a_family(facts: dict[str, str], name: str | None):
    found = processor_of(facts)
    assert (found.name if found is not None else None) == name


@pytest.mark.parametrize("name", PROCESSORS)
def test_numbers_are_those_of_a_machine(name: str):
    """Caches grow and speeds fall from level to level; one core has no more of memory than all."""
    p = PROCESSORS[name]
    assert p.l1_bytes < p.l2_bytes < p.l3_bytes
    assert p.l2_gbps > p.l3_gbps > p.bandwidth > 0 and p.memory_gbps >= p.bandwidth


def test_narrow_vectors_use_a_part_of_wide_units():
    wide, narrow = CPUS["x86-64-v4"], CPUS["x86-64-v3"]
    assert wide.on(PROCESSORS["zen5"]).gflops == 2 * narrow.on(PROCESSORS["zen5"]).gflops
    assert wide.on(PROCESSORS["zen4"]).gflops == narrow.on(PROCESSORS["zen4"]).gflops
    assert narrow.on(PROCESSORS["zen2"]).panel == narrow.panel


def test_only_native_has_the_numbers_of_this_machine(monkeypatch: pytest.MonkeyPatch):
    """A named instruction set gives the same kernels wherever it is compiled."""
    monkeypatch.setattr("onnxfuse.target.cpu_facts", lambda: AMD | {"cpu family": "26", "flags": ""})
    (native,) = targets_of(["native"])
    assert native.processor == "zen5"
    assert targets_of([native.name]) == (CPUS[native.name],)
    monkeypatch.setattr("onnxfuse.target.cpu_facts", dict)
    (native,) = targets_of(["native"])
    assert native.processor == "" and native.gflops == CPUS[native.name].gflops
