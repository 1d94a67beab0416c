"""How losses and bounds are stored: without the last bits of a sum, which depend on the machine.

What is proven must not seem broken by the rounding alone: a bound that is at most a loss is still
so once both are rounded, however small they are.
"""

from __future__ import annotations

import math

_BOUND_DIGITS = 9  # that count
_LOSS_DECIMALS = 12
_RELATIVE = 1e-12  # a sum of a million float64 numbers is right to less


def rounded(loss: float) -> float:
    """A loss to 12 decimals, but never to fewer digits that count than a bound has."""
    if not loss > 0:
        return 0.0
    return round(loss, max(_LOSS_DECIMALS, _BOUND_DIGITS - 1 - math.floor(math.log10(loss))))


def rounded_down(bound: float) -> float:
    """A lower bound to 9 digits that count, and never above what it was."""
    low = bound * (1 - _RELATIVE)
    if not low > 0:
        return 0.0
    places = _BOUND_DIGITS - 1 - math.floor(math.log10(low))
    near = round(low, places)
    return near if near <= low else max(0.0, round(near - 10.0**-places, places))
