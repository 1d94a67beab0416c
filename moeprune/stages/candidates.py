"""Which experts could stay and how they could be stored: the best choice for any number of bytes.

L MoE layers, E experts of the widest layer, X options of a layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from moeprune.allocators._mixture import solve
from moeprune.core.choice import Mask, keep_counts, real_LE
from moeprune.core.mixture import Mixture
from moeprune.core.quantisation import PLAIN
from moeprune.core.stats import Array
from moeprune.stages.weighed import Weighed

Counts = NDArray[np.int64]


@dataclass(frozen=True, slots=True, eq=False)
class Candidate:
    """Which experts stay, and how they are stored.

    Attributes:
        keep_LE: (L, E) bool, True = the expert stays.
        schemes: (L,) of ``MIXABLE``.
        loss: what is minimised.
        bound: no other candidate of the same room loses less.
    """

    keep_LE: Mask
    schemes: tuple[str, ...]
    loss: float
    bound: float


Choose = Callable[[int], Candidate | None]
"""The best candidate whose experts take at most so many bytes; None: there is none."""


@dataclass(frozen=True, slots=True, eq=False)
class Choices:
    """Choices for one model.

    Attributes:
        weighed: its experts in every scheme.
        worth_LE: (L, E) float64, not negative: what an expert is worth.
        num_experts: (L,) routed experts of each layer.
    """

    weighed: Weighed
    worth_LE: Array
    num_experts: tuple[int, ...]

    @property
    def total(self) -> float:
        """What all experts are worth together."""
        return float(self.worth_LE[real_LE(self.num_experts)].sum())

    def only(self, scheme: str) -> Choices:
        """The choices that store all layers in one scheme."""
        return replace(self, weighed=replace(self.weighed, schemes=(scheme,)))

    def of_kept(self, keep_LE: Mask) -> Choose:
        """Experts are given; the scheme of each layer is to be chosen."""
        gone, loss, nbytes = self._options(keep_LE)

        def choose(room: int) -> Candidate | None:
            problem = Mixture(loss=tuple(loss), nbytes=tuple(nbytes), budget=room)
            if problem.least > room:
                return None
            found = solve(problem)
            schemes = tuple(self.weighed.schemes[x] for x in found.choice)
            return Candidate(keep_LE, schemes, gone + found.loss, gone + found.bound)

        return choose

    def of_each(self, levels: Sequence[Callable[[], Mask]], counts: Sequence[Array]) -> Choose:
        """One of several sets of kept experts, from most to fewest, and a scheme for each layer.

        Args:
            levels: give the experts that stay.
            counts: (L,) how many these are, of each level.
        """
        made: dict[int, Choose] = {}

        def choose(room: int) -> Candidate | None:
            best: Candidate | None = None
            bound = np.inf
            for at, (level, count_L) in enumerate(zip(levels, counts, strict=True)):
                if self.least(count_L) > room:
                    continue
                if at not in made:
                    made[at] = self.of_kept(level())
                found = made[at](room)
                assert found is not None
                bound = min(bound, found.bound)
                if best is None or found.loss < best.loss:
                    best = found
                if PLAIN in self.weighed.schemes and self._plain(count_L) <= room:
                    break  # where nothing has to be stored otherwise, none has to leave either
            return best and replace(best, bound=bound)

        return choose

    def of_counts(self, orders: Sequence[Array], leave: Sequence[Sequence[int]]) -> Choose:
        """How many experts leave each layer, in a given order, and a scheme for each layer.

        Args:
            orders: L arrays: ids in the order in which they leave.
            leave: L ascending lists of how many may leave.
        """
        loss, nbytes = [], []
        for row, (order, counts) in enumerate(zip(orders, leave, strict=True)):
            worth_E = self.worth_LE[row, order]
            gone = np.append(0.0, np.cumsum(worth_E))[list(counts)]
            kept = order.size - np.array(counts, dtype=np.int64)
            each, sizes = [], []
            for scheme in self.weighed.schemes:
                lost_E = worth_E * self.weighed.errors[scheme][row, order]
                stays = np.append(np.cumsum(lost_E[::-1])[::-1], 0.0)[list(counts)]
                each.append(gone + stays)
                sizes.append(kept * self.weighed.nbytes[scheme][row])
            loss.append(np.concatenate(each))
            nbytes.append(np.concatenate(sizes))

        def choose(room: int) -> Candidate | None:
            problem = Mixture(loss=tuple(loss), nbytes=tuple(nbytes), budget=room)
            if problem.least > room:
                return None
            found = solve(problem)
            picked = [
                (counts[x % len(counts)], self.weighed.schemes[x // len(counts)])
                for x, counts in zip(found.choice, leave, strict=True)
            ]
            keep_LE = keep_counts(orders, [count for count, _ in picked])
            schemes = tuple(scheme for _, scheme in picked)
            return Candidate(keep_LE, schemes, found.loss, found.bound)

        return choose

    def taken(self, found: Candidate) -> int:
        """The bytes that the experts of a candidate take."""
        counts = found.keep_LE.sum(axis=1)
        return sum(
            int(count) * self.weighed.nbytes[scheme][row]
            for row, (count, scheme) in enumerate(zip(counts, found.schemes, strict=True))
        )

    def _plain(self, count_L: Counts) -> int:
        return int((count_L * np.array(self.weighed.nbytes[PLAIN])).sum())

    def least(self, count_L: Counts) -> int:
        """The fewest bytes that so many experts of each layer take."""
        each = np.array([self.weighed.nbytes[scheme] for scheme in self.weighed.schemes]).min(
            axis=0
        )
        return int((count_L * each).sum())

    def _options(self, keep_LE: Mask) -> tuple[float, list[Array], list[Array]]:
        """What the removed experts are worth, and loss and bytes (X,) of each layer's schemes."""
        gone = float(self.worth_LE[real_LE(self.num_experts) & ~keep_LE].sum())
        kept_LE = np.where(keep_LE, self.worth_LE, 0.0)
        loss = np.stack(
            [(kept_LE * self.weighed.errors[s]).sum(axis=1) for s in self.weighed.schemes], axis=1
        )
        each = np.array([self.weighed.nbytes[s] for s in self.weighed.schemes], dtype=np.int64).T
        return gone, list(loss), list(each * keep_LE.sum(axis=1)[:, None])
