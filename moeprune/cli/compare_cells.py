"""Cells of the tables of a comparison."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from moeprune.evaluate.comparison.differences import Difference


_HUGE = 1e7


def signed(value: float, digits: int) -> str:
    """``+0.35``, and ``+0.00`` for what rounds to nothing, from whichever side."""
    return f"{round(value, digits) + 0.0:+.{digits}f}"


def change(part: Difference, *, digits: int = 2) -> str:
    """``-4.64 [-9.11, -0.17]``: variant minus base, in points or on its own scale."""
    if part.low is None or part.high is None:
        return signed(part.points, digits)
    return (
        f"{signed(part.points, digits)} [{signed(part.low, digits)}, {signed(part.high, digits)}]"
    )


def score(part: Difference, value: float) -> str:
    """A mean: percent where scores lie within [0, 1]."""
    return percent(value) if part.scale != 1 else f"{value:.4g}"


def percent(value: float) -> str:
    """``71.20%``."""
    return f"{value:.2%}"


def flips(part: Difference) -> str:
    """``12/5``: answers that were lost, and won."""
    return "-" if part.to_wrong is None else f"{part.to_wrong:,}/{part.to_right:,}"


def p_value(p: float | None, *, sign: bool = False) -> str:
    """``0.021`` or ``<0.001``; with ``sign``, ``= 0.021``."""
    if p is None:
        return "-"
    if p < 0.001:
        return "< 0.001" if sign else "<0.001"
    return f"= {p:.3f}" if sign else f"{p:.3f}"


def number(value: float | None, digits: int = 2) -> str:
    """A number, with ``-`` for none; a huge one by its power of ten."""
    if value is None:
        return "-"
    return f"{value:,.{digits}f}" if abs(value) < _HUGE else f"{value:.3g}"


def growth(ratio: float) -> str:
    """A ratio as a change in percent: ``-7.95``."""
    return signed(100 * (ratio - 1), 2) if ratio < _HUGE else f"{ratio:+.3g} x"


def place(task: str, domain: str) -> str:
    """``mmlu / law``; the task alone where it has no domains (``lm_eval:arc`` has but ``arc``)."""
    return task if domain in (task, task.removeprefix("lm_eval:")) else f"{task} / {domain}"


def plural(count: int, word: str) -> str:
    """``1 question``, ``2,000 questions``."""
    return f"{count:,} {word}{'' if count == 1 else 's'}"
