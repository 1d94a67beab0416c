"""``moeprune merge``."""

from __future__ import annotations

from pathlib import Path

import click

from moeprune.cli.options import json_option, output_option, say


@click.command("merge")
@click.argument("stats", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="STATS…")
@output_option("the merged statistics")
@json_option
def command(stats: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Add up statistics of one model: other domains, or other shards of a domain."""
    from moeprune.cli.text import stats_json, stats_text
    from moeprune.stages.merge import merge

    merged = merge(stats, output=output)
    say(stats_json(merged, output), stats_text(merged, output), as_json=as_json)
