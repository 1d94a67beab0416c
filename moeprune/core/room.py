"""How far each layer of a model can be cut, before anybody says how far it should be.

L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

from dataclasses import dataclass

from moeprune.core.constraints import Constraints
from moeprune.core.facts import ModelFacts
from moeprune.core.limits import Limits, limits, round_up, row_floors, unit_why, why
from moeprune.core.rows import row_name
from moeprune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Room:
    """Floors, protected experts and layers with a count of their own.

    Attributes:
        facts: the model.
        limit: its floors.
        floors: (L,) the fewest experts a row may keep if it loses any.
        own: (L,) experts that leave a row whose count was asked for; None = the ratio decides.
        protected: (L,) ids that never leave, or ().
    """

    facts: ModelFacts
    limit: Limits
    floors: tuple[int, ...]
    own: tuple[int | None, ...]
    protected: tuple[tuple[int, ...], ...]

    @classmethod
    def of(cls, facts: ModelFacts, constraints: Constraints, *, multiple_of: int) -> Room:
        """The room of a model under constraints.

        Raises:
            UsageError: a layer cannot keep the number that was asked for, or nothing can leave.
        """
        limit = limits(facts, multiple_of=multiple_of)
        room = cls(
            facts=facts,
            limit=limit,
            floors=row_floors(facts, limit, constraints.protected),
            own=tuple(
                None
                if layer not in constraints.layer_keep
                else count - constraints.layer_keep[layer]
                for layer, count in zip(facts.layer_ids, facts.num_experts, strict=True)
            ),
            protected=constraints.protected,
        )
        for row, leave in enumerate(room.own):
            if leave is not None:
                room._check_own(row, facts.num_experts[row] - leave)
        if not any(room.most):
            raise UsageError(room._nothing(multiple_of))
        return room

    @property
    def caps(self) -> tuple[int, ...]:
        """(L,) the most experts that may leave each row, by its floor alone."""
        return tuple(
            max(0, count - floor)
            for count, floor in zip(self.facts.num_experts, self.floors, strict=True)
        )

    @property
    def most(self) -> tuple[int, ...]:
        """(L,) the most experts that may leave each row, or exactly its own number."""
        return tuple(
            cap if own is None else own for cap, own in zip(self.caps, self.own, strict=True)
        )

    @property
    def free(self) -> tuple[int, ...]:
        """The rows whose count the ratio decides."""
        return tuple(row for row, own in enumerate(self.own) if own is None)

    @property
    def own_total(self) -> int:
        """Experts that leave rows with a count of their own."""
        return sum(leave for leave in self.own if leave is not None)

    def why_row(self, row: int) -> str:
        """What one row must keep and why, for messages."""
        where = row_name(*self.facts.rows[row])
        return (
            f"{where} must keep {min(self.floors[row], self.facts.num_experts[row])} of its "
            f"{self.facts.num_experts[row]} experts ({len(self.protected[row])} are protected)"
        )

    def is_tight(self, row: int) -> bool:
        """Whether protected experts, and not the model, set the floor of a row."""
        return self.floors[row] > self.limit.min_keep

    def _check_own(self, row: int, keep: int) -> None:
        facts, count = self.facts, self.facts.num_experts[row]
        option = f"--layer-keep {facts.layer_ids[row]}={keep}"
        if keep > count:
            raise UsageError(
                f"{option}: the layer has {count} experts. Use {count} to keep it whole."
            )
        if keep == count:
            return
        if keep < self.floors[row]:
            reason = (
                self.why_row(row)
                if self.is_tight(row)
                else f"{facts.name} must keep {why(facts, self.limit)}"
            )
            raise UsageError(
                f"{option} is too few: {reason}. Use {min(self.floors[row], count)} or more."
            )
        if keep % self.limit.unit:
            up = min(count, round_up(keep, self.limit.unit))
            down = keep - keep % self.limit.unit
            raise UsageError(
                f"{option} is not a multiple of {self.limit.unit} "
                f"({unit_why(facts, self.limit)}). Use {down} or {up}."
            )

    def _nothing(self, multiple_of: int) -> str:
        facts = self.facts
        if any(count > self.limit.min_keep for count in facts.num_experts):
            return (
                f"nothing can leave {facts.name}: every layer is kept whole or protects too many "
                "experts. Name fewer of them."
            )
        return (
            f"nothing can leave {facts.name}: a pruned layer must keep {why(facts, self.limit)}, "
            f"and its layers have at most {facts.width} experts. "
            + ("Use a smaller --multiple-of." if multiple_of > 1 else "It cannot be pruned.")
        )
