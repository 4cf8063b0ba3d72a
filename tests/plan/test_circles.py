"""Groups that depend on each other in a circle: one that closes it is found, wherever the others lie."""

from __future__ import annotations

import random

from onnxfuse.plan.legal import Legal, Set, members
from tests.plan.test_best import legal_of

NODES = 12


def legal_at_random(seed: int) -> Legal:
    """The legality of a graph in which each node adds up one to three values made before it."""
    rng = random.Random(seed)
    lines = [
        f"t{i} = Sum({', '.join(rng.sample(['x', *(f't{k}' for k in range(i))], min(i + 1, rng.randint(1, 3))))})"
        for i in range(NODES)
    ]
    outputs = ", ".join(f"float[4] t{i}" for i in range(NODES))
    return legal_of(f"(float[4] x) => ({outputs}) {{ {' '.join(lines)} }}")


def test_a_group_is_circular_if_and_only_if_the_groups_with_it_have_a_cycle() -> None:
    found = {True: 0, False: 0}
    for seed in range(200):
        legal, rng = legal_at_random(seed), random.Random(seed)
        units = legal.scope.units()
        groups: list[Set] = []
        for _ in range(12):
            i, j = sorted(rng.sample(range(NODES), 2))
            parts = [next((g for g in groups if g >> at & 1), 1 << at) for at in (i, j)]
            whole = parts[0] | parts[1]
            others = [g for g in groups if g not in parts]
            own = {at: g for g in groups for at in members(g)}
            circular = not legal.acyclic([*others, whole])
            assert legal.circular(whole, own) == circular, (seed, groups, whole)
            assert units.closes_cycle(units.group[i], j) == circular, (seed, groups, whole)
            found[circular] += 1
            if not circular and parts[0] != parts[1]:
                units.join(units.group[i], j)
                groups = [*others, whole]
    assert min(found.values()) > 200
