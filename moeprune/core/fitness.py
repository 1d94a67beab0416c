"""How a search over numbers of experts asks what a genome is worth.

L MoE layers.
"""

from __future__ import annotations

import math
from collections.abc import Collection
from typing import Protocol

__all__ = ["Counts", "Fitness"]

Counts = tuple[int, ...]
"""(L,) experts removed from each row: a genome. Which ones is fixed by an order of leaving."""


class Fitness(Protocol):
    """What a genome is worth, between 0 and 1, and what it cost to find out.

    A value never depends on the parent, on the bound asked for, or on what was asked before.

    Attributes:
        layer_forwards: decoder layers run so far; one layer on one batch counts 1.
        layer_forwards_naive: what running every genome asked for through every layer on every
            batch would have cost.
    """

    layer_forwards: int
    layer_forwards_naive: int

    def score(
        self, counts: Counts, *, parent: Counts | None = None, at_least: float = -math.inf
    ) -> float | None:
        """What a genome is worth.

        Args:
            counts: the genome.
            parent: one whose hidden states may be used where both remove the same.
            at_least: a genome worth less than this need not be finished.

        Returns:
            A number in [0, 1]; or None: proven to be below ``at_least``.
        """

    def retain(self, counts: Collection[Counts]) -> None:
        """Forget the hidden states of all other genomes."""
