"""What the lower bound of a plan is a bound of, in words and digits that claim no more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeprune.core.plan import PrunePlan

_CONSTRAINTS = {"keep_layers", "layer_keep", "protect_super_experts", "must_keep"}


def bounded_plans(plan: PrunePlan) -> str:
    """The plans of which none beats ``plan.lower_bound``, after "no"."""
    uniform = plan.allocation == "uniform"
    # Where all counts are given, so is what they are multiples of.
    limited = not uniform and plan.options.get("multiple_of", 1) != 1
    limited |= bool(_CONSTRAINTS & set(plan.options))
    kind = "uniform plan" if uniform else "plan"
    return f"{kind} of this size" + (" under the same constraints" if limited else "")


def weightless(plan: PrunePlan) -> frozenset[str]:
    """The domains that weigh 0: the worst domain and the lower bound are of the others."""
    weights = plan.options.get("domain_weights")
    if not isinstance(weights, dict):
        return frozenset()
    return frozenset(name for name, weight in weights.items() if weight == 0)


def bound_text(bound: float, digits: int = 2) -> str:
    """A lower bound in percent, rounded down: it claims no more than is proven."""
    return f"{floor_digits(bound, digits) / 10**digits:.{digits}f}%"


def floor_digits(share: float, digits: int) -> int:
    """A share in units of the last of ``digits`` digits of a percent, rounded down."""
    # A thousandth of the last digit is the rounding of the stored number: 29 % may be 28.9999999 %.
    return math.floor(share * 100 * 10.0**digits + 1e-3)
