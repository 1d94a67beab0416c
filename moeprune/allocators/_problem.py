"""Which experts may leave together, as an optimisation problem, and its cheapest answer.

Given a weight for every domain, the removal that costs least under a budget is a matter of sorting:
within a layer the cheapest leave first, one of each router group at a time, and layers compete by
chunks (``core.choice.keep_highest`` says why that is exact). Everything else here is built on it.

D domains, L MoE layers, E experts of the widest layer, N = L · E, G router groups, B = L · G
blocks, S experts of the largest block.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprune.core.budget import Budget
from moeprune.core.choice import Mask, real_LE
from moeprune.core.stats import Array

Ids = NDArray[np.intp]


@dataclass(frozen=True, slots=True)
class Answer:
    """The cheapest removal for one weighting of the domains.

    Attributes:
        loss_D: (D,) what it costs each domain.
        leave_N: (N,) bool, True = the expert leaves; None where part of a chunk leaves.
    """

    loss_D: Array
    leave_N: Mask | None


class Problem:
    """A budget and what every expert is worth to every domain.

    Attributes:
        budget: how many may leave where.
        total: experts that leave in all.
        loss_ND: (N, D) share of the domain's worth that leaves with the expert.
        index_BS: (B, S) the experts of every block that may leave; N where there is none.
        max_slices_L: (L,) the most that may leave each block of a layer.
        fixed_L: (L,) bool, True = exactly so many leave, whatever it costs.
    """

    def __init__(self, worth_DLE: Array, budget: Budget, *, total: int | None = None) -> None:
        whole_D = worth_DLE.sum(axis=(1, 2))
        share_DLE = np.divide(
            worth_DLE,
            whole_D[:, None, None],
            out=np.zeros(worth_DLE.shape),
            where=whole_D[:, None, None] > 0,
        )
        domains, rows, width = worth_DLE.shape
        self.budget = budget
        self.total = budget.remove_total if total is None else total
        self.shape = (rows, width)
        self.loss_ND = np.ascontiguousarray(share_DLE.reshape(domains, -1).T)
        groups = budget.num_groups
        size = max(budget.num_experts) // groups
        self.index_BS = np.full((rows * groups, size), rows * width, dtype=np.intp)
        protected = budget.protected or ((),) * rows
        for row, count in enumerate(budget.num_experts):
            per = count // groups
            ids_GP = row * width + np.arange(count).reshape(groups, per)
            closed = np.isin(ids_GP - row * width, list(protected[row]))
            at = slice(row * groups, (row + 1) * groups)
            self.index_BS[at, :per] = np.where(closed, rows * width, ids_GP)
        self.max_slices_L = np.array(budget.max_remove) // groups
        least_L = np.array(budget.min_remove or (0,) * rows)
        self.fixed_L = np.array(self.uniform) | (least_L == np.array(budget.max_remove))
        self._chunks()

    @property
    def uniform(self) -> bool:
        """Whether every layer loses exactly its own count."""
        return self.budget.allocation == "uniform"

    @property
    def single(self) -> bool:
        """Whether experts leave one by one and layers compete."""
        return not self.uniform and self.budget.unit == 1

    def _chunks(self) -> None:
        layer, start, end = [], [], []
        for row, (count, most) in enumerate(
            zip(self.budget.num_experts, self.budget.max_remove, strict=True)
        ):
            first = count % self.budget.unit or self.budget.unit
            ends = np.arange(first, most + 1, self.budget.unit) // self.budget.num_groups
            layer.append(np.full(ends.size, row))
            start.append(np.concatenate([[0], ends[:-1]])[: ends.size])
            end.append(ends)
        self._layer = np.concatenate(layer)
        self._start = np.concatenate(start).astype(np.intp)
        self._end = np.concatenate(end).astype(np.intp)
        self._size = (self._end - self._start) * self.budget.num_groups

    def cost_N(self, weight_D: Array) -> Array:
        """(N + 1,) weighted loss of every expert; infinite in the last place, which is none."""
        return np.append(self.loss_ND @ weight_D, np.inf)

    def sorted_BS(self, cost_N: Array) -> tuple[Ids, Array]:
        """The experts of every block in the order they leave, (B, S), and their costs."""
        cost_BS = cost_N[self.index_BS]
        order_BS = np.argsort(cost_BS, axis=1, kind="stable")
        return (
            np.take_along_axis(self.index_BS, order_BS, axis=1),
            np.take_along_axis(cost_BS, order_BS, axis=1),
        )

    def slices_L(self, cost_BS: Array) -> tuple[Array, tuple[int, int, int, float] | None]:
        """How many of each block leave, (L,), by sorted costs; and the chunk that leaves in part.

        Returns:
            Whole slices of every layer, and (layer, start, end, share) or None.
        """
        if self.uniform:
            return self.max_slices_L, None
        rows, groups = self.shape[0], self.budget.num_groups
        slice_LS = cost_BS.reshape(rows, groups, -1).sum(axis=1)
        if self.budget.unit == groups:
            mean = slice_LS[self._layer, self._start]
        else:
            sums_LS = np.cumsum(np.pad(slice_LS, ((0, 0), (1, 0))), axis=1)
            chunk = sums_LS[self._layer, self._end] - sums_LS[self._layer, self._start]
            mean = chunk / self._size
            # Rounding may let the mean of equal costs fall by a last bit; order must not follow.
            for row in range(rows):
                mine = self._layer == row
                mean[mine] = np.maximum.accumulate(mean[mine])
        mean = np.where(self.fixed_L[self._layer], -np.inf, mean)
        cheapest = np.argsort(mean, kind="stable")
        taken = np.cumsum(self._size[cheapest])
        whole = int(np.searchsorted(taken, self.total, side="right"))
        leave_L = np.zeros(rows, dtype=np.intp)
        np.maximum.at(leave_L, self._layer[cheapest[:whole]], self._end[cheapest[:whole]])
        rest = self.total - (int(taken[whole - 1]) if whole else 0)
        if not rest:
            return leave_L, None
        part = cheapest[whole]
        share = rest / int(self._size[part])
        return leave_L, (
            int(self._layer[part]),
            int(self._start[part]),
            int(self._end[part]),
            share,
        )

    def cheapest(self, weight_D: Array) -> Answer:
        """The removal of least weighted loss; with chunks of two sizes, of its relaxation.

        Args:
            weight_D: (D,) float64, not negative.
        """
        ids_BS, cost_BS = self.sorted_BS(self.cost_N(weight_D))
        leave_L, part = self.slices_L(cost_BS)
        groups = self.budget.num_groups
        leaves_BS = np.arange(ids_BS.shape[1])[None, :] < np.repeat(leave_L, groups)[:, None]
        ids = ids_BS[leaves_BS]
        loss_D = self.loss_ND[ids].sum(axis=0)
        if part is not None:
            layer, start, end, share = part
            some = ids_BS[layer * groups : (layer + 1) * groups, start:end].reshape(-1)
            return Answer(loss_D + share * self.loss_ND[some].sum(axis=0), None)
        leave_N = np.zeros(self.loss_ND.shape[0], dtype=np.bool_)
        leave_N[ids] = True
        return Answer(loss_D, leave_N)

    def loss_D(self, leave_N: Mask) -> Array:
        """(D,) what a removal costs each domain."""
        return np.asarray(self.loss_ND[leave_N].sum(axis=0))

    def keep_LE(self, leave_N: Mask) -> Mask:
        """(L, E) bool, True = the expert stays."""
        return np.asarray(real_LE(self.budget.num_experts) & ~leave_N.reshape(self.shape))
