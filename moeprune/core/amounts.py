"""How many experts leave for a ratio, or for a count to keep, within the room of a model.

Layers that have a count of their own take no part. L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from fractions import Fraction

from moeprune.core.limits import counts, round_up, unit_why, why
from moeprune.core.room import Room
from moeprune.errors import UsageError

_RATIO_DIGITS = 6


def sizes(room: Room) -> list[int]:
    """Routed experts of every free row."""
    return [room.facts.num_experts[row] for row in room.free]


def caps(room: Room) -> list[int]:
    """The most that may leave every free row."""
    return [room.caps[row] for row in room.free]


def uniform_leaving(room: Room, share: Fraction) -> list[int]:
    """What leaves every free row: ⌊share · E⌋, what stays rounded up to the unit."""
    stay = [round_up(count - math.floor(share * count), room.limit.unit) for count in sizes(room)]
    return [max(0, count - kept) for count, kept in zip(sizes(room), stay, strict=True)]


def whole_units(room: Room, wanted: int) -> int:
    """Round down to units where every chunk is a whole one."""
    if all(count % room.limit.unit == 0 for count in sizes(room)):
        return wanted - wanted % room.limit.unit
    return wanted


def smallest_chunk(room: Room) -> int:
    """The fewest experts that can leave the free rows together; 1 if none can."""
    unit = room.limit.unit
    chunks = [
        count % unit or unit for count, cap in zip(sizes(room), caps(room), strict=True) if cap
    ]
    return min(chunks, default=1)


def from_keep(room: Room, keep: int, allocation: str) -> list[int]:
    """What leaves the free rows so that each keeps ``keep`` (``global``: on average).

    Returns:
        One count a free row; ``global``: one for all of them.

    Raises:
        UsageError: no such pruning; the message names the nearest one.
    """
    facts, limit = room.facts, room.limit
    if type(keep) is not int or keep < 1:
        raise UsageError(f"--keep {keep} is not a count of experts.")
    if keep < limit.min_keep:
        least = max(limit.min_keep, *(room.floors[row] for row in room.free))
        works = least <= min(sizes(room)) and least < max(sizes(room))
        raise UsageError(
            f"--keep {keep} is too few: {facts.name} must keep {why(facts, limit)}. "
            + (f"Use --keep {least} or more." if works else "Use --ratio.")
        )
    total = sum(sizes(room))
    leaves_none = keep * len(room.free) >= total
    if leaves_none if allocation == "global" else keep >= max(sizes(room)):
        raise UsageError(
            f"--keep {keep} removes no expert: layers have {counts(facts)}. Use a smaller --keep."
        )
    if allocation == "global":
        wanted = whole_units(room, total - keep * len(room.free))
        if not smallest_chunk(room) <= wanted <= sum(caps(room)):
            protecting = " and what is protected" if any(map(room.is_tight, room.free)) else ""
            raise UsageError(
                f"--keep {keep} on average cannot be met in units of {limit.unit} with at least "
                f"{limit.min_keep}{protecting} kept in every layer. Use another --keep or --ratio."
            )
        return [wanted]
    narrow = min(sizes(room))
    if keep > narrow:
        layer = facts.layer_ids[room.free[sizes(room).index(narrow)]]
        fits = narrow - narrow % limit.unit
        way = f"--keep {fits} or fewer" if fits >= limit.min_keep else "--ratio"
        raise UsageError(f"--keep {keep}: layer {layer} has only {narrow} experts. Use {way}.")
    if keep % limit.unit and any(count != keep for count in sizes(room)):
        raise UsageError(
            f"--keep {keep} is not a multiple of {limit.unit} ({unit_why(facts, limit)}). "
            f"Use --keep {keep - keep % limit.unit} or {round_up(keep, limit.unit)}."
        )
    leave = [count - keep for count in sizes(room)]
    tight = _tightest(room, leave)
    if tight is not None:
        least = max(room.floors[row] for row in room.free)
        way = f"Use --keep {least} or more" if least < narrow else "Use --allocation global"
        raise UsageError(f"--keep {keep} is too few: {room.why_row(tight)}. {way}.")
    return leave


def from_ratio(room: Room, ratio: float, allocation: str) -> list[int]:
    """What leaves the free rows for a ratio: the decimal number as it is written.

    Returns:
        One count a free row; ``global``: one for all of them.

    Raises:
        UsageError: no such pruning; the message names the nearest ratio that works.
    """
    facts, limit = room.facts, room.limit
    if not 0 < ratio < 1:  # also refuses NaN
        raise UsageError(
            f"--ratio {ratio} is not a share of experts; use a number between 0 and 1, e.g. 0.25."
        )
    # The shortest decimal that reads back as this float is what the user wrote.
    exact = Fraction(repr(float(ratio)))

    def leaving(share: Fraction) -> list[int]:
        if allocation == "global":
            return [whole_units(room, math.floor(share * sum(sizes(room))))]
        return uniform_leaving(room, share)

    def fits(share: Fraction) -> bool:
        most = [sum(caps(room))] if allocation == "global" else caps(room)
        return all(count <= cap for count, cap in zip(leaving(share), most, strict=True))

    least = smallest_chunk(room) if allocation == "global" else 1
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
        floor = max(room.floors[row] for row in room.free)
        if floor <= min(sizes(room)) and floor < max(sizes(room)):
            ways.append(f"--keep {floor} or more")
        reason = f"{facts.name} must keep {why(facts, limit)}"
        tight = None if allocation == "global" else _tightest(room, leave)
        if tight is not None:
            reason = room.why_row(tight)
        elif any(map(room.is_tight, room.free)):
            reason += ", and experts that are protected"
        raise UsageError(
            f"--ratio {ratio} removes too many: {reason}. "
            f"Use {', or '.join(ways) or _elsewhere(allocation)}."
        )
    return leave


def _elsewhere(allocation: str) -> str:
    return "a smaller ratio" if allocation == "global" else "--allocation global"


def _tightest(room: Room, leave: list[int]) -> int | None:
    """Of the rows that protect too many to lose so many: the one that must keep most."""
    rows = [
        row
        for row, count in zip(room.free, leave, strict=True)
        if count > room.caps[row] and room.is_tight(row)
    ]
    return max(rows, key=lambda row: room.floors[row], default=None)


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
