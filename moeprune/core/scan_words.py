"""Figures of a scan in words."""

from __future__ import annotations

from collections.abc import Sequence

from moeprune.core.scan_picks import TEXT
from moeprune.core.scan_rows import Row, TaskFigures


def shown(perplexity: float) -> str:
    """With as many digits as tell two apart."""
    return f"{perplexity:,.3f}" if perplexity < 1e5 else f"{perplexity:.4g}"


def named(by: str) -> str:
    """``held-out perplexity`` of ``perplexity-held-out``; ``task mmlu`` of a task."""
    head, dash, rest = by.partition("-")
    return f"{rest} {head}" if dash and head == TEXT else f"task {by}"


def change(row: Row, by: str) -> str:
    """A row's figure of one split or task, against native.

    Args:
        row: of the scan.
        by: the split, or the task.
    """
    if by in row.tasks:
        return task_change(row.tasks[by])
    figures = row.texts[by]
    told = "" if figures.ratio is None else f", {percent(figures.ratio)} against native"
    return f"{shown(figures.perplexity)}{told}"


def task_change(figures: TaskFigures) -> str:
    """``88.10 %, -1.20 points against native, lost/won 20/9, p = 0.041``."""
    if figures.points is None:
        return f"{figures.accuracy:.2%}"
    flips = "" if figures.lost is None else f", lost/won {figures.lost}/{figures.won}"
    p = figures.p if figures.p_holm is None else figures.p_holm
    told = "" if p is None else (", p < 0.001" if p < 0.001 else f", p = {p:.3f}")
    return f"{figures.accuracy:.2%}, {figures.points:+.2f} points{flips}{told}"


def percent(ratio: float) -> str:
    """A ratio as a change: ``+4.00%``."""
    return f"{100 * (ratio - 1):+.2f}%" if ratio < 100 else f"{ratio:,.0f} times"


def listed(names: Sequence[str]) -> str:
    """``a, b and c``."""
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1]


def advice(cost: TaskFigures) -> str:
    """What to make of two picks that differ by so much on a task."""
    p = cost.p if cost.p_holm is None else cost.p_holm
    return "this may be chance" if p is None or p >= 0.05 else "do not choose by perplexity"
