"""How what is proven of a plan reads: the least that the worst domain could lose."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeprune.core.plan import PrunePlan

_MOST_DIGITS = 5
_CONSTRAINTS = {"keep_layers", "layer_keep", "protect_super_experts", "must_keep"}


def worst_text(plan: PrunePlan, loss: float) -> str:
    """What the worst domain loses and the least that it could, in digits that tell them apart."""
    if plan.lower_bound is None:
        return f"worst domain {plan.worst_domain} loses {loss:.2%}"
    digits = 2
    while digits < _MOST_DIGITS and _floor(plan.lower_bound, digits) == _floor(loss, digits):
        digits += 1
    kind = "uniform plan" if plan.allocation == "uniform" else "plan"
    under = " under the same constraints" if _CONSTRAINTS & set(plan.options) else ""
    return (
        f"worst domain {plan.worst_domain} loses {loss:.{digits}%}, no {kind} of this size{under} "
        f"can lose less than {bound_text(plan.lower_bound, digits)}"
    )


def bound_text(bound: float, digits: int = 2) -> str:
    """A lower bound in percent, rounded down: it claims no more than is proven."""
    return f"{_floor(bound, digits) / 10**digits:.{digits}f}%"


def proof_lines(plan: PrunePlan) -> list[str]:
    """What ``mesa-exact`` proved of its plan."""
    if plan.method != "mesa-exact" or "gap" not in plan.details:
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


def _floor(share: float, digits: int) -> int:
    # A thousandth of the last digit is the rounding of the stored number: 29 % may be 28.9999999 %.
    return math.floor(share * 100 * 10.0**digits + 1e-3)
