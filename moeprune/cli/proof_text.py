"""How what is proven of a plan reads: the least that the worst domain could lose."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from moeprune.core.proven import bound_text, bounded_plans, floor_digits

if TYPE_CHECKING:
    from moeprune.core.plan import PrunePlan

_MOST_DIGITS = 5


def worst_text(plan: PrunePlan, loss: float) -> str:
    """What the worst domain loses and the least that it could, in digits that tell them apart."""
    if plan.lower_bound is None:
        return f"worst domain {plan.worst_domain} loses {loss:.2%}"
    digits = 2
    while digits < _MOST_DIGITS and floor_digits(plan.lower_bound, digits) == floor_digits(
        loss, digits
    ):
        digits += 1
    return (
        f"worst domain {plan.worst_domain} loses {loss:.{digits}%}, no {bounded_plans(plan)} "
        f"can lose less than {bound_text(plan.lower_bound, digits)}"
    )


def proof_lines(plan: PrunePlan) -> list[str]:
    """What ``best`` or ``mesa-exact`` proved of its plan."""
    if plan.method not in ("best", "mesa-exact") or "gap" not in plan.details:
        return []
    said = plan.details
    lines = [
        f"proven by {plan.criterion}: the worst loss is within {_share(said['gap'])} of the least "
        f"there is, the mean within {_share(said['mean_gap'])} of the least at that worst loss"
    ]
    if said["time_limit_hit"]:
        lines.append(
            "the time limit was reached: another machine may find another plan; raise --time-limit "
            "or --gap"
        )
    return lines


def _share(gap: float) -> str:
    """A gap in percent, rounded up to two digits that count."""
    if gap <= 0:
        return "0%"
    digits = max(2, 1 - math.floor(math.log10(gap * 100)))
    return f"{math.ceil(gap * 100 * 10**digits) / 10**digits:.{digits}f}%"
