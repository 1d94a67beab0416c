"""How many experts may leave where: a ratio or a count, the model's floors, and units.

L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction

from moeprune.core.facts import ModelFacts
from moeprune.core.limits import Limits, counts, limits, round_up, unit_why, why
from moeprune.errors import UsageError
from moeprune.plugins import known

__all__ = ["ALLOCATIONS", "Budget", "Limits", "limits"]

ALLOCATIONS = ("uniform", "global")

_RATIO_DIGITS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """How many experts leave.

    Within a layer experts leave in chunks of ``unit`` (the first one trims the layer to a multiple
    of it), the same number from every router group.

    Attributes:
        allocation: ``"uniform"`` or ``"global"``.
        num_experts: (L,) routed experts of each layer.
        num_groups: router groups, 1 = none.
        unit: a layer that loses experts keeps a multiple of this.
        max_remove: (L,) the most that may leave each layer. With ``uniform`` exactly these leave.
        remove_total: experts that leave in all. Met exactly, except where a layer's own count is
            not a multiple of ``unit``: then at most ``unit - 1`` fewer leave.
        protected: (L,) ids of experts that never leave, or (): none. ``max_remove`` leaves room for
            them in every router group.
    """

    allocation: str
    num_experts: tuple[int, ...]
    num_groups: int
    unit: int
    max_remove: tuple[int, ...]
    remove_total: int
    protected: tuple[tuple[int, ...], ...] = ()

    def __post_init__(self) -> None:
        assert len(self.num_experts) == len(self.max_remove)
        assert 0 < self.remove_total <= sum(self.max_remove)
        assert self.unit % self.num_groups == 0
        for count, leave in zip(self.num_experts, self.max_remove, strict=True):
            assert leave == 0 or (0 < leave < count and (count - leave) % self.unit == 0)
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
    ) -> Budget:
        """The budget for a ratio, or for a number of experts to keep.

        ``uniform``: ⌊ratio · E⌋ of every layer, what stays rounded up to the unit. ``global``:
        ⌊ratio · Σ E⌋ of all layers (eq. 2 of MESA), rounded down to units. The ratio is the decimal
        number as written: 0.29 of 100 is 29.

        Args:
            facts: the model.
            ratio: share of the routed experts to remove, between 0 and 1.
            keep: experts to keep in every layer (``global``: on average); instead of ``ratio``.
            allocation: ``"uniform"`` or ``"global"``.
            multiple_of: kept counts must be a multiple of this.

        Raises:
            UsageError: no such budget; the message names the nearest one that exists.
        """
        known(allocation, ALLOCATIONS, kind="allocation")
        if allocation == "global" and facts.sets:
            raise UsageError(
                f"--allocation global does not go with {facts.name}: the expert sets of a layer "
                "share one count. Use uniform."
            )
        limit = limits(facts, multiple_of=multiple_of)
        if (ratio is None) == (keep is None):
            raise UsageError("give either --ratio or --keep, and not both.")
        room = tuple(max(0, count - limit.min_keep) for count in facts.num_experts)
        if not any(room):
            raise UsageError(
                f"nothing can leave {facts.name}: a pruned layer must keep {why(facts, limit)}, "
                f"and its layers have at most {facts.width} experts. "
                + ("Use a smaller --multiple-of." if multiple_of > 1 else "It cannot be pruned.")
            )
        if keep is not None:
            leave = _from_keep(facts, limit, keep, allocation)
        else:
            assert ratio is not None
            leave = _from_ratio(facts, limit, room, ratio, allocation)
        return cls(
            allocation=allocation,
            num_experts=facts.num_experts,
            num_groups=facts.num_groups,
            unit=limit.unit,
            max_remove=room if allocation == "global" else tuple(leave),
            remove_total=sum(leave),
        )


def _from_keep(facts: ModelFacts, limit: Limits, keep: int, allocation: str) -> list[int]:
    if type(keep) is not int or keep < 1:
        raise UsageError(f"--keep {keep} is not a count of experts.")
    if keep < limit.min_keep:
        raise UsageError(
            f"--keep {keep} is too few: {facts.name} must keep {why(facts, limit)}. "
            f"Use --keep {limit.min_keep} or more."
        )
    total = sum(facts.num_experts)
    leaves_none = keep * facts.num_layers >= total
    if leaves_none if allocation == "global" else keep >= facts.width:
        raise UsageError(
            f"--keep {keep} removes no expert: layers have {counts(facts)}. Use a smaller --keep."
        )
    if allocation == "global":
        wanted = _whole_units(facts, limit, total - keep * facts.num_layers)
        most = sum(max(0, count - limit.min_keep) for count in facts.num_experts)
        if not _smallest_chunk(facts, limit) <= wanted <= most:
            raise UsageError(
                f"--keep {keep} on average cannot be met in units of {limit.unit} with at least "
                f"{limit.min_keep} kept in every layer. Use another --keep or --ratio."
            )
        return [wanted]
    narrow = min(facts.num_experts)
    if keep > narrow:
        layer = facts.layer_ids[facts.num_experts.index(narrow)]
        raise UsageError(
            f"--keep {keep}: layer {layer} has only {narrow} experts. Use --keep {narrow} or fewer."
        )
    if keep % limit.unit and any(count != keep for count in facts.num_experts):
        raise UsageError(
            f"--keep {keep} is not a multiple of {limit.unit} ({unit_why(facts, limit)}). "
            f"Use --keep {keep - keep % limit.unit} or {round_up(keep, limit.unit)}."
        )
    return [count - keep for count in facts.num_experts]


def _from_ratio(
    facts: ModelFacts, limit: Limits, room: tuple[int, ...], ratio: float, allocation: str
) -> list[int]:
    if not 0 < ratio < 1:  # also refuses NaN
        raise UsageError(
            f"--ratio {ratio} is not a share of experts; use a number between 0 and 1, e.g. 0.25."
        )
    # The shortest decimal that reads back as this float is what the user wrote.
    exact = Fraction(repr(float(ratio)))

    def leaving(share: Fraction) -> list[int]:
        if allocation == "global":
            return [_whole_units(facts, limit, math.floor(share * sum(facts.num_experts)))]
        stay = [
            round_up(count - math.floor(share * count), limit.unit) for count in facts.num_experts
        ]
        return [max(0, count - kept) for count, kept in zip(facts.num_experts, stay, strict=True)]

    def fits(share: Fraction) -> bool:
        leave = leaving(share)
        caps = [sum(room)] if allocation == "global" else room
        return all(count <= cap for count, cap in zip(leave, caps, strict=True))

    least = _smallest_chunk(facts, limit) if allocation == "global" else 1
    leave = leaving(exact)
    if sum(leave) < least:
        smallest = _extreme(lambda share: sum(leaving(share)) >= least, leaving, largest=False)
        works = smallest is not None and fits(Fraction(smallest))
        way = f"Use --ratio {smallest} or more" if works else "Use --allocation global"
        raise UsageError(
            f"--ratio {ratio} removes no expert: layers have {counts(facts)}"
            + (f" and keep a multiple of {limit.unit}" if limit.unit > 1 else "")
            + f". {way}."
        )
    if not fits(exact):
        largest = _extreme(fits, leaving, largest=True)
        useful = largest is not None and sum(leaving(Fraction(largest))) >= least
        ways = [f"--ratio {largest} or less"] if useful else []
        if limit.min_keep <= min(facts.num_experts):
            ways.append(f"--keep {limit.min_keep} or more")
        raise UsageError(
            f"--ratio {ratio} removes too many: {facts.name} must keep {why(facts, limit)}. "
            f"Use {', or '.join(ways) or '--allocation global'}."
        )
    return leave


def _extreme(
    holds: Callable[[Fraction], bool],
    leaving: Callable[[Fraction], list[int]],
    *,
    largest: bool,
) -> str | None:
    """The largest (smallest) short decimal for which a monotone condition holds, or None."""

    def search(digits: int) -> Fraction | None:
        scale = 10**digits
        low, high = 0, scale  # invariant: holds/fails at one end, fails/holds at the other
        while high - low > 1:
            middle = (low + high) // 2
            if holds(Fraction(middle, scale)) == largest:
                low = middle
            else:
                high = middle
        found = low if largest else high
        return Fraction(found, scale) if 0 < found < scale else None

    best = search(_RATIO_DIGITS)
    for digits in range(2, _RATIO_DIGITS + 1):
        found = search(digits)
        if found is not None and best is not None and leaving(found) == leaving(best):
            return f"{float(found):.{digits}f}".rstrip("0")
    return None


def _whole_units(facts: ModelFacts, limit: Limits, wanted: int) -> int:
    """Round down to units where every chunk is a whole one."""
    if all(count % limit.unit == 0 for count in facts.num_experts):
        return wanted - wanted % limit.unit
    return wanted


def _smallest_chunk(facts: ModelFacts, limit: Limits) -> int:
    open_layers = [count for count in facts.num_experts if count > limit.min_keep]
    return min(count % limit.unit or limit.unit for count in open_layers)
