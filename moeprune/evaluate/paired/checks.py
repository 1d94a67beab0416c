"""What every test and interval asks of its input, said in one line each."""

from __future__ import annotations

import math
import sys
from collections.abc import Sequence

import numpy as np
from numpy.typing import ArrayLike, NDArray

from moeprune.core.stats import Array
from moeprune.errors import MismatchError, UsageError

SMALLEST_P = sys.float_info.min
"""2.2e-308: a p-value below it, which a float64 cannot hold exactly, is given as this."""


def probability(p: float) -> float:
    """A p-value kept within (0, 1]: never above 1 by rounding, never 0 by underflow."""
    return min(1.0, max(SMALLEST_P, float(p)))


def check_share(value: float, *, name: str) -> None:
    """Refuse what is not strictly between 0 and 1: a level, a power.

    Raises:
        UsageError: it is not.
    """
    if not 0 < value < 1:
        raise UsageError(f"{name} must lie between 0 and 1, both excluded; got {value}.")


def whole_number(value: int, *, name: str, least: int = 0) -> int:
    """A count as an int.

    Raises:
        UsageError: it has a fraction, or is below ``least``.
    """
    if not math.isfinite(value) or value != int(value) or value < least:
        raise UsageError(f"{name} must be a whole number of at least {least}; got {value}.")
    return int(value)


def right_or_wrong(values: ArrayLike, *, name: str) -> NDArray[np.bool_]:
    """One answer a question, as (N,) bool; 0 and 1 may stand for False and True.

    Raises:
        UsageError: another shape, or a value that is neither.
    """
    try:
        values_N = np.asarray(values)
    except ValueError as error:  # lists of different lengths
        raise UsageError(f"{name} must be one list of answers.") from error
    if values_N.ndim != 1:
        raise UsageError(f"{name} must be one list of answers; got shape {values_N.shape}.")
    if values_N.dtype != np.bool_ and not np.isin(values_N, (0, 1)).all():
        raise UsageError(f"{name} must hold right (1) or wrong (0) only; it holds other values.")
    return values_N.astype(np.bool_)


def finite(values: ArrayLike, *, name: str, ndim: int = 1) -> Array:
    """Numbers as float64 of ``ndim`` axes.

    Raises:
        UsageError: no numbers, another number of axes, or a NaN or infinity.
    """
    try:
        found = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise UsageError(f"{name} must be numbers, as many in every row.") from error
    if found.ndim != ndim:
        raise UsageError(f"{name} must have {ndim} axes; got shape {found.shape}.")
    if not np.isfinite(found).all():
        raise UsageError(f"{name} must hold finite numbers only; it holds NaN or infinity.")
    return found


def check_same_length(one: Sequence[object] | Array, other: Sequence[object] | Array) -> None:
    """Refuse two lists that cannot be paired.

    Raises:
        MismatchError: their lengths differ.
    """
    if len(one) != len(other):
        raise MismatchError(
            f"{len(one)} and {len(other)} values cannot be paired; join them by question first."
        )
