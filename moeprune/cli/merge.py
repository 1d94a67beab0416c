"""``moeprune merge``."""

from __future__ import annotations

from pathlib import Path

import click

from moeprune.cli.options import json_option, output_option, printable, say


@click.command("merge")
@click.argument("stats", nargs=-1, required=True, type=click.Path(path_type=Path), metavar="STATS…")
@output_option("the merged statistics")
@json_option
def command(stats: tuple[Path, ...], output: Path, as_json: bool) -> None:
    """Add up STATS files of one model: of different domains, or of shards of one domain.

    Says which shards are missing where a domain is not whole. A stats file at the output is
    replaced.
    """
    from moeprune.cli.text import missing_text, stats_json, stats_text
    from moeprune.core.merging import missing_shards
    from moeprune.stages.merge import merge

    merged = merge(stats, output=output)
    missing = {
        domain.name: [f"{index}/{of}" for index, of in found]
        for domain in merged.domains
        if (found := missing_shards(domain))
    }
    say(
        {**stats_json(merged, output), "missing": missing},
        stats_text(merged, output),
        as_json=as_json,
    )
    if missing:
        click.echo(printable(f"warning: {missing_text(missing)}"), err=True)
