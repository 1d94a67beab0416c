"""How many experts may leave where: a ratio or a count, the model's floors, constraints, units.

L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from moeprune.core.amounts import from_keep, from_ratio
from moeprune.core.constraints import Constraints
from moeprune.core.facts import ModelFacts
from moeprune.core.limits import Limits, limits
from moeprune.core.room import Room
from moeprune.errors import UsageError
from moeprune.plugins import known

__all__ = ["ALLOCATIONS", "Budget", "Limits", "limits"]

ALLOCATIONS = ("uniform", "global")

_NONE = Constraints()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many experts leave.

    Within a layer experts leave in chunks of ``unit`` (the first one trims the layer to a multiple
    of it), the same number from every router group.

    Attributes:
        allocation: ``"uniform"``, ``"global"`` or ``"evolved"``.
        num_experts: (L,) routed experts of each layer.
        num_groups: router groups, 1 = none.
        unit: a layer that loses experts keeps a multiple of this.
        max_remove: (L,) the most that may leave each layer. With ``uniform`` exactly these leave.
        remove_total: experts that leave in all. Met exactly, except where a layer's own count is
            not a multiple of ``unit``: then at most ``unit - 1`` fewer leave.
        protected: (L,) ids of experts that never leave, or (): none. ``max_remove`` leaves room for
            them in every router group.
        min_remove: (L,) the fewest that leave each layer; equal to ``max_remove`` where the count
            of a layer was asked for. (): none need to.
    """

    allocation: str
    num_experts: tuple[int, ...]
    num_groups: int
    unit: int
    max_remove: tuple[int, ...]
    remove_total: int
    protected: tuple[tuple[int, ...], ...] = ()
    min_remove: tuple[int, ...] = ()

    def __post_init__(self) -> None:
        assert len(self.num_experts) == len(self.max_remove)
        assert sum(self.min_remove) <= self.remove_total <= sum(self.max_remove)
        assert self.remove_total > 0
        assert self.unit % self.num_groups == 0
        for count, leave in zip(self.num_experts, self.max_remove, strict=True):
            assert leave == 0 or (0 < leave < count and (count - leave) % self.unit == 0)
        assert len(self.min_remove) in (0, len(self.num_experts))
        for least, most in zip(self.min_remove, self.max_remove, strict=False):
            assert least in (0, most)
        assert len(self.protected) in (0, len(self.num_experts))
        for row, ids in enumerate(self.protected):
            size = self.num_experts[row] // self.num_groups
            most = max(sum(e // size == g for e in ids) for g in range(self.num_groups))
            assert self.max_remove[row] <= self.num_groups * (size - most)

    @classmethod
    def of(
        cls,
        facts: ModelFacts,
        *,
        ratio: float | None,
        keep: int | None,
        allocation: str,
        multiple_of: int = 1,
        constraints: Constraints = _NONE,
    ) -> Budget:
        """The budget for a ratio, or for a number of experts to keep.

        ``uniform``: ⌊ratio · E⌋ of every layer, what stays rounded up to the unit. ``global``:
        ⌊ratio · Σ E⌋ of all layers (eq. 2 of MESA), rounded down to units. The ratio is the decimal
        number as written: 0.29 of 100 is 29. Layers whose count the constraints state take no part
        in either.

        Args:
            facts: the model.
            ratio: share of the routed experts to remove, between 0 and 1.
            keep: experts to keep in every layer (``global``: on average); instead of ``ratio``.
                Neither, if the constraints state the count of every layer.
            allocation: ``"uniform"`` or ``"global"``.
            multiple_of: kept counts must be a multiple of this.
            constraints: what stays whatever the scores say.

        Raises:
            UsageError: no such budget; the message names the nearest one that exists.
        """
        room = room_for(
            facts, allocation=allocation, multiple_of=multiple_of, constraints=constraints
        )
        if not room.free:
            if (ratio, keep) != (None, None):
                raise UsageError(
                    "--keep-layers and --layer-keep name every MoE layer, so "
                    f"{'--ratio' if keep is None else '--keep'} says nothing: leave it out."
                )
            return cls.within(room, allocation, [])
        if (ratio is None) == (keep is None):
            given = (
                "--ratio and --keep are both given" if keep is not None else "no size is asked for"
            )
            raise UsageError(f"{given}: give one of --ratio, --keep and --max-bytes.")
        if not any(room.caps[row] for row in room.free):
            raise UsageError(
                "nothing can leave the layers that --keep-layers and --layer-keep do not name; "
                "name fewer, or all."
            )
        if keep is not None:
            return cls.within(room, allocation, from_keep(room, keep, allocation))
        assert ratio is not None
        return cls.within(room, allocation, from_ratio(room, ratio, allocation))

    @classmethod
    def within(cls, room: Room, allocation: str, leave: Sequence[int]) -> Budget:
        """The budget that lets so many leave.

        Args:
            room: of the model.
            allocation: ``"uniform"`` or ``"global"``.
            leave: of every free row; ``global``: of all of them together.
        """
        most = list(room.most)
        least = [0 if own is None else own for own in room.own]
        if allocation == "uniform":
            for row, count in zip(room.free, leave, strict=True):
                most[row] = least[row] = count
        return cls(
            allocation=allocation,
            num_experts=room.facts.num_experts,
            num_groups=room.facts.num_groups,
            unit=room.limit.unit,
            max_remove=tuple(most),
            min_remove=tuple(least),
            remove_total=sum(leave) + room.own_total,
            protected=room.protected,
        )

    def evolved(self, room: Room) -> Budget:
        """As many experts in all, and no layer's number fixed but where it was asked for.

        Args:
            room: that this budget was made in.
        """
        return Budget.within(room, "evolved", [self.remove_total - room.own_total])


def room_for(
    facts: ModelFacts, *, allocation: str, multiple_of: int, constraints: Constraints
) -> Room:
    """The room of a model for an allocation.

    Raises:
        UsageError: the allocation does not exist or does not fit the model, or the constraints
            cannot be met.
    """
    known(allocation, ALLOCATIONS, kind="allocation")
    if allocation == "global" and facts.sets:
        raise UsageError(
            f"--allocation global does not go with {facts.name}: the expert sets of a layer "
            "share one count. Use uniform."
        )
    return Room.of(facts, constraints, multiple_of=multiple_of)
