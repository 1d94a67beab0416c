"""Halves of the text: the four folds of documents, split in two."""

from __future__ import annotations

from collections.abc import Sequence

from moeprune.core.stats import CalibrationStats

Half = tuple[int, int]

# The three ways to split four folds in two halves.
SPLITS: tuple[tuple[Half, Half], ...] = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))


def halves_of(stats: CalibrationStats) -> list[tuple[Half, Half]]:
    """The splits whose halves both hold text of every domain."""
    return [halves for halves in SPLITS if all(has_text(stats, half) for half in halves)]


def has_text(stats: CalibrationStats, folds: Sequence[int]) -> bool:
    """Whether these folds hold text of every domain."""
    return all(domain.num_tokens(folds=folds) for domain in stats.domains)
