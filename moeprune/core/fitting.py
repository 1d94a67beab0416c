"""The budget of the largest pruned model that fits a number of bytes.

L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable
from fractions import Fraction

import numpy as np

from moeprune.core.amounts import caps, sizes, smallest_chunk, uniform_leaving
from moeprune.core.budget import Budget, room_for
from moeprune.core.choice import Mask
from moeprune.core.constraints import Constraints
from moeprune.core.facts import ModelFacts
from moeprune.core.room import Room
from moeprune.errors import UsageError


def bytes_after(facts: ModelFacts, keep_LE: Mask) -> int:
    """Bytes of all tensors once the other experts left."""
    leave_L = np.array(facts.num_experts) - keep_LE.sum(axis=1)
    freed = sum(int(n) * size for n, size in zip(leave_L, facts.expert_bytes, strict=True))
    return facts.total_bytes - freed


def budget_for(
    facts: ModelFacts,
    *,
    ratio: float | None,
    keep: int | None,
    max_bytes: int | None,
    allocation: str,
    multiple_of: int,
    constraints: Constraints,
    choose: Callable[[Budget], Mask],
) -> Budget:
    """The budget for a ratio, a count to keep or a size: see :meth:`Budget.of` and below.

    Raises:
        UsageError: no such budget, or more than one of the three.
    """
    if max_bytes is None:
        return Budget.of(
            facts,
            ratio=ratio,
            keep=keep,
            allocation=allocation,
            multiple_of=multiple_of,
            constraints=constraints,
        )
    if (ratio, keep) != (None, None):
        raise UsageError(
            f"--max-bytes {max_bytes} takes the place of --ratio and --keep: give one of the three."
        )
    return fitting_budget(
        facts,
        max_bytes,
        allocation=allocation,
        multiple_of=multiple_of,
        constraints=constraints,
        choose=choose,
    )


def fitting_budget(
    facts: ModelFacts,
    max_bytes: int,
    *,
    allocation: str,
    multiple_of: int,
    constraints: Constraints,
    choose: Callable[[Budget], Mask],
) -> Budget:
    """The budget that removes fewest experts such that the model fits.

    ``uniform``: the smallest ratio whose plan fits; layers with a count of their own keep it.
    ``global``: the fewest experts. Where experts of all layers are of one size that number follows
    from it; else it depends on which ones leave, and is found by halving: the plan with one chunk
    fewer would not fit.

    Args:
        facts: the model.
        max_bytes: the most that all tensors together may take.
        allocation: ``"uniform"`` or ``"global"``.
        multiple_of: kept counts must be a multiple of this.
        constraints: what stays whatever the scores say.
        choose: the experts that stay under a budget; asked only where their sizes differ.

    Raises:
        UsageError: the model fits already, or no pruned one does.
    """
    room = room_for(facts, allocation=allocation, multiple_of=multiple_of, constraints=constraints)
    own = sum(
        leave * size
        for leave, size in zip(room.own, facts.expert_bytes, strict=True)
        if leave is not None
    )
    need = facts.total_bytes - own - max_bytes
    if need <= 0 and not own:
        raise UsageError(
            f"--max-bytes {max_bytes}: {facts.name} has {facts.total_bytes} bytes, so it fits "
            "already. Use a smaller --max-bytes, or --ratio."
        )
    if need <= 0:  # the layers with a count of their own free enough
        return Budget.within(
            room, allocation, [0] * (len(room.free) if allocation == "uniform" else 1)
        )
    if allocation == "uniform":
        return Budget.within(room, allocation, _uniform(room, need, max_bytes))
    return _global(room, need, max_bytes, choose)


def uniform_shares(room: Room) -> list[Fraction]:
    """The shares that may leave every free row, ascending; between two of them no count changes."""

    def over(share: Fraction) -> bool:
        leave = uniform_leaving(room, share)
        return any(count > cap for count, cap in zip(leave, caps(room), strict=True))

    shares = sorted({Fraction(k, count) for count in set(sizes(room)) for k in range(count)})
    return shares[: bisect_left(shares, True, key=over)]


def _uniform(room: Room, need: int, max_bytes: int) -> list[int]:
    weights = [room.facts.expert_bytes[row] for row in room.free]

    def freed(share: Fraction) -> int:
        leave = uniform_leaving(room, share)
        return sum(count * size for count, size in zip(leave, weights, strict=True))

    allowed = uniform_shares(room)
    enough = bisect_left(allowed, need, key=freed)
    if enough == len(allowed):
        most = freed(allowed[-1]) if allowed else 0
        if not most:
            raise UsageError(
                f"--max-bytes {max_bytes} cannot be met: no ratio fits every layer. Use "
                "--allocation global, or --keep-layers for those that can lose none."
            )
        raise _none_fits(room, most, max_bytes, need)
    return uniform_leaving(room, allowed[enough])


def _global(room: Room, need: int, max_bytes: int, choose: Callable[[Budget], Mask]) -> Budget:
    facts, unit = room.facts, room.limit.unit
    each = sorted(
        ((facts.expert_bytes[row], cap) for row, cap in zip(room.free, caps(room), strict=True)),
    )
    most = sum(caps(room))
    if sum(size * cap for size, cap in each) < need:
        raise _none_fits(room, sum(size * cap for size, cap in each), max_bytes, need)
    whole = all(count % unit == 0 for count in sizes(room))
    step = unit if whole else 1
    # Whichever leave, fewer cannot be enough; and so many are, whole chunks that do not fit aside.
    fewest = max(_up(_count(each[::-1], need), step), smallest_chunk(room))
    enough = min(most, _up(_count(each, need), step) + (0 if whole else unit - 1))

    def budget(total: int) -> Budget:
        return Budget.within(room, "global", [total])

    def too_large(total: int) -> bool:
        return bytes_after(facts, choose(budget(total))) > max_bytes

    low, high = fewest - step, enough  # invariant: low does not fit, high does
    while high - low > step:
        middle = low + (high - low) // step // 2 * step
        low, high = (middle, high) if too_large(middle) else (low, middle)
    return budget(high)


def _count(each: list[tuple[int, int]], need: int) -> int:
    """How many experts free ``need`` bytes, taken in this order."""
    total = 0
    for size, cap in each:
        if size * cap >= need:
            return total + -(-need // size)
        total, need = total + cap, need - size * cap
    return total


def _up(count: int, step: int) -> int:
    return -(-count // step) * step


def _none_fits(room: Room, most: int, max_bytes: int, need: int) -> UsageError:
    smallest = max_bytes + need - most
    return UsageError(
        f"--max-bytes {max_bytes} cannot be met: the smallest that {room.facts.name} can become "
        f"this way has {smallest} bytes. Use --max-bytes {smallest} or more."
    )
