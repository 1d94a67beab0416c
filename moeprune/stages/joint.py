"""How many experts leave and how the others are stored, decided together.

Which experts leave a layer first is the method's to say; how many leave, and the scheme of each
layer, are the best there are for the budget.

L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from moeprune.core.amounts import uniform_leaving
from moeprune.core.budget import Budget
from moeprune.core.choice import (
    Mask,
    Outcome,
    chunk_ends,
    keep_counts,
    leaving_orders,
    real_LE,
)
from moeprune.core.fitting import uniform_shares
from moeprune.core.methods import METHODS
from moeprune.core.room import Room
from moeprune.errors import UsageError
from moeprune.stages.candidates import Choices, Choose, Counts
from moeprune.stages.choosing import Chooser

_RANK = "rank"


def check_joint(method: str, allocation: str) -> None:
    """Check that a method can be asked for any number of experts.

    Raises:
        UsageError: it cannot, or it would take too long.
    """
    found = METHODS[method]
    if found.allocator not in (_RANK, "mesa"):
        raise UsageError(
            f"--method {method} does not go with --quantize mixed and --max-bytes, which tries "
            "every number of experts. Use another method, or --ratio with --budget."
        )
    if allocation != "uniform" and found.allocator != _RANK:
        ranking = ", ".join(sorted(n for n, m in METHODS.items() if m.allocator == _RANK))
        raise UsageError(
            f"--allocation {allocation} with --quantize mixed and --max-bytes goes with methods "
            f"that rank ({ranking}), not with {method}. Use one of them, or uniform."
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Joint:
    """The choices of a method.

    Attributes:
        room: how far each layer can be cut.
        allocation: ``"uniform"`` or ``"global"``.
        choose: the method.
    """

    room: Room
    allocation: str
    choose: Chooser

    def ways(self, choices: Choices) -> list[Choose]:
        """The best number of experts and schemes for any room.

        With ``global``, once of any counts, and once of the same in every layer: such an export
        carries no code, so that there is more room.
        """
        if self.allocation == "uniform":
            levels = [(leave_L, self._level(leave_L)) for leave_L in self._uniform_leaving()]
            return [self._of_each(choices, levels)]
        orders, each = self._orders(None), self._leaving()
        ways = [choices.of_counts(orders, [tuple(map(int, counts)) for counts in each])]
        kept = [
            {int(count - leave) for leave in own}
            for count, own in zip(self.room.facts.num_experts, each, strict=True)
        ]
        same = sorted(set.intersection(*kept), reverse=True)
        gone = [np.array(self.room.facts.num_experts) - count for count in same]
        if gone:
            levels = [(leave_L, _cut(orders, leave_L)) for leave_L in gone]
            ways.append(self._of_each(choices, levels))
        return ways

    def _of_each(
        self, choices: Choices, levels: Sequence[tuple[Counts, Callable[[], Mask]]]
    ) -> Choose:
        num_experts = np.array(self.room.facts.num_experts)
        return choices.of_each(
            [level for _, level in levels], [num_experts - leave_L for leave_L, _ in levels]
        )

    @property
    def most_leave(self) -> Sequence[int]:
        """(L,) the most experts that may leave."""
        if self.allocation == "uniform":
            return [int(count) for count in self._uniform_leaving()[-1]]
        return [int(counts[-1]) for counts in self._leaving()]

    def budget(self, keep_LE: Mask) -> Budget | None:
        """What the method would be asked, to keep as many; None: all stay."""
        leave_L = self._left(keep_LE)
        if not leave_L.sum():
            return None
        if self.allocation == "uniform":
            return Budget.within(
                self.room, "uniform", [int(leave_L[row]) for row in self.room.free]
            )
        return Budget.within(self.room, "global", [int(leave_L.sum()) - self.room.own_total])

    def pick(self, keep_LE: Mask) -> Callable[[Budget, Sequence[int] | None], Outcome]:
        """What some of the text would choose, of as many experts in every layer."""
        if self.allocation == "uniform":
            return self.choose
        leave_L = [int(count) for count in self._left(keep_LE)]
        return lambda budget, folds: Outcome(keep_counts(self._orders(folds), leave_L))

    def _left(self, keep_LE: Mask) -> Counts:
        return np.asarray(np.array(self.room.facts.num_experts) - keep_LE.sum(axis=1))

    def _level(self, leave_L: Counts) -> Callable[[], Mask]:
        def level() -> Mask:
            if not leave_L.sum():
                return real_LE(self.room.facts.num_experts)
            free = [int(leave_L[row]) for row in self.room.free]
            return self.choose(Budget.within(self.room, "uniform", free), None).keep_LE

        return level

    def _uniform_leaving(self) -> list[Counts]:
        """(L,) what leaves, from none to most."""
        found: dict[tuple[int, ...], None] = {}
        for share in uniform_shares(self.room):
            leave = [0 if own is None else own for own in self.room.own]
            for row, count in zip(self.room.free, uniform_leaving(self.room, share), strict=True):
                leave[row] = count
            found[tuple(leave)] = None
        return [np.array(leave, dtype=np.int64) for leave in found]

    def _leaving(self) -> list[Counts]:
        """L arrays: how many may leave each layer, from none to most."""
        room = self.room
        found = []
        for count, cap, own in zip(room.facts.num_experts, room.caps, room.own, strict=True):
            if own is not None:
                found.append(np.array([own], dtype=np.int64))
            else:
                found.append(np.append(0, chunk_ends(count, cap, room.limit.unit)))
        return found

    def _orders(self, folds: Sequence[int] | None) -> tuple[Counts, ...]:
        """L arrays: ids in the order in which they leave."""
        room = self.room
        groups = Budget(
            allocation="global",
            num_experts=room.facts.num_experts,
            num_groups=room.facts.num_groups,
            unit=room.limit.unit,
            max_remove=room.most,
            remove_total=max(room.most),
            protected=room.protected,
        )
        return leaving_orders(self.choose.scored(folds), groups)


def _cut(orders: Sequence[Counts], leave_L: Counts) -> Callable[[], Mask]:
    return lambda: keep_counts(orders, [int(count) for count in leave_L])
