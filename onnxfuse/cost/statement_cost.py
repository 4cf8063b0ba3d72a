"""What statements cost a core, by the units that they keep busy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class StatementCost:
    """What one run of a list of statements costs: slots of the two units, loads, stores, and the longest chain."""

    ops: float = 0.0
    loads: float = 0.0
    stores: float = 0.0
    other: float = 0.0  # cycles that share nothing with the units
    chains: dict[str, float] = field(default_factory=dict)

    def add(self, inside: StatementCost, share: float = 1.0) -> None:
        """What a block inside costs, of which so large a share of the runs is made; its chains are not added."""
        self.ops += share * inside.ops
        self.loads += share * inside.loads
        self.stores += share * inside.stores
        self.other += share * inside.other

    def wait(self, chains: Mapping[str, float]) -> None:
        """Accumulators that are added to."""
        for target, cycles in chains.items():
            self.chains[target] = self.chains.get(target, 0.0) + cycles

    @property
    def cycles(self) -> float:
        """Of the busiest unit, or of the longest chain where that takes longer."""
        return max(self.ops / 2, self.loads / 2, self.stores, *self.chains.values(), 0.0) + self.other
