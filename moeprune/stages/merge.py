"""merge: add up stats files of one model."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from moeprune.core.merging import merge as merge_stats
from moeprune.core.stats import CalibrationStats
from moeprune.kinds import check_replaced


def merge(paths: Sequence[str | Path], *, output: str | Path) -> CalibrationStats:
    """Add up stats of other domains, or of other shards of the same domain.

    Args:
        paths: stats files; their order does not matter to the sums.
        output: the file to write; it may be one of ``paths``.

    Raises:
        StatsError: a file is no stats file, or a shard would count twice.
        MismatchError: the files are of different models, settings or texts.
        UsageError: no file.
        OutputError: ``output`` cannot be written.
    """
    check_replaced(Path(output), own="stats")
    merged = merge_stats([CalibrationStats.load(Path(path)) for path in paths])
    merged.save(Path(output))
    return merged
