"""How the routing profile of an analysis reads on a terminal, and how k₁ and k₂ are spelled."""

from __future__ import annotations

from collections.abc import Mapping
from statistics import fmean
from typing import Any

from moeprune.cli.text import table
from moeprune.errors import UsageError

_ALL = "E"


def parse_ranks(text: str | None, option: str) -> tuple[int | str, ...]:
    """``"4,6"`` or ``"8,16,E"`` to numbers; None to none.

    Raises:
        UsageError: a part is neither a whole number from 1 nor, for k₂, ``E``.
    """
    found: list[int | str] = []
    for part in () if text is None else text.split(","):
        word = part.strip()
        if word == _ALL and option == "--k2":
            found.append(_ALL)
        elif word.isascii() and word.isdecimal() and 0 < int(word) < 10**9:
            found.append(int(word))
        else:
            or_all = f", or {_ALL} for all" if option == "--k2" else ""
            raise UsageError(
                f"{option} {text!r}: {word!r} is not a whole number from 1{or_all}; use e.g. "
                f"{'8,16,E' if option == '--k2' else '4,6'}."
            )
    return tuple(found)


def gains_text(profile: Mapping[str, Any], *, num_experts: int) -> list[str]:
    """The lines of ``moeprune analyse`` on k₁ and k₂.

    Args:
        profile: ``routing_profile`` of the analysis.
        num_experts: of the widest layer.
    """
    ranks = [rank for rank in (1, 2, 4, 8, 16, 32, 64, 128) if rank < num_experts]
    shown = ", ".join(
        f"{rank}: {fmean(row[min(rank, len(row)) - 1] for row in profile['mean']):.3f}"
        for rank in [*ranks, num_experts]
    )
    several = len(next(iter(profile["gains"]))["by_domain"]) > 1
    rows = [["  gain of k1, k2", "mean", "layers", *(["domains"] if several else [])]]
    for gain in profile["gains"]:
        of_domains = [fmean(by_layer) for by_layer in gain["by_domain"].values()]
        k2 = f"{gain['k2']} (all)" if gain["k2"] >= num_experts else str(gain["k2"])
        rows.append(
            [
                f"  {gain['k1']}, {k2}",
                f"{gain['mean']:.3f}",
                _span(gain["by_layer"]),
                *([_span(of_domains)] if several else []),
            ]
        )
    lines = [f"mean router probability of rank {shown}", *_native(profile["native"]), table(rows)]
    if not profile["by_choice"]:
        lines.append(
            "  ranks are by probability; this router chooses within groups, so what it chooses "
            "holds less"
        )
    return lines


def _native(native: Mapping[str, Any] | None) -> list[str]:
    """What the model's own weights are to the probabilities."""
    if native is None:
        return []
    if native["k1"] != native["k2"]:
        return [
            "  this router does not renormalise: its weights sum to "
            f"{fmean(native['by_layer']):.3f} (layers {_span(native['by_layer'])})"
        ]
    return [
        f"  this router divides by the top {native['k2']}, which multiplies probabilities by "
        f"{fmean(native['amplification']):.2f} (layers {_span(native['amplification'], 2)})"
    ]


def _span(values: list[float], digits: int = 3) -> str:
    return f"{min(values):.{digits}f} to {max(values):.{digits}f}"
