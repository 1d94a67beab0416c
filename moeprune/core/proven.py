"""What the lower bound of a plan is a bound of, in words and digits that claim no more."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeprune.core.plan import PrunePlan

_CONSTRAINTS = {"keep_layers", "layer_keep", "protect_super_experts", "must_keep"}


def bounded_plans(plan: PrunePlan) -> str:
    """The plans of which none beats ``plan.lower_bound``, after "no"."""
    kind = "uniform plan" if plan.allocation == "uniform" else "plan"
    under = " under the same constraints" if _CONSTRAINTS & set(plan.options) else ""
    return f"{kind} of this size{under}"


def bound_text(bound: float, digits: int = 2) -> str:
    """A lower bound in percent, rounded down: it claims no more than is proven."""
    return f"{floor_digits(bound, digits) / 10**digits:.{digits}f}%"


def floor_digits(share: float, digits: int) -> int:
    """A share in units of the last of ``digits`` digits of a percent, rounded down."""
    # A thousandth of the last digit is the rounding of the stored number: 29 % may be 28.9999999 %.
    return math.floor(share * 100 * 10.0**digits + 1e-3)
