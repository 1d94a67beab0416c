"""``moeprune analyse``."""

from __future__ import annotations

from pathlib import Path

import click

from moeprune.cli.options import json_option, output_option, say


@click.command("analyse")
@click.argument("stats", type=click.Path(path_type=Path), metavar="STATS")
@click.argument("plans", type=click.Path(path_type=Path), nargs=-1, metavar="[PLAN]...")
@output_option("the analysis (analysis.json)")
@click.option(
    "--ratio",
    type=float,
    help="Share of experts removed in the plans whose sensitivity is measured. [default: 0.25]",
)
@click.option(
    "--k1",
    metavar="N,…",
    help="With --k2: gains for these numbers of experts run per token, e.g. 4,6.",
)
@click.option(
    "--k2",
    metavar="N,…",
    help="With --k1: for weights divided by the probability of so many; E is all, e.g. 8,16,E.",
)
@json_option
def command(
    stats: Path,
    plans: tuple[Path, ...],
    output: Path,
    ratio: float | None,
    k1: str | None,
    k2: str | None,
    as_json: bool,
) -> None:
    """Show what STATS say of routing, domains and plans: no model, no GPU, seconds.

    Router entropy, where the mass lies, what weights sum to for any k1 and k2, how far the domains
    differ beyond chance, how far MESA's plan depends on its settings and on the amount of text, and
    what the PLANs have in common.
    """
    from moeprune.cli.analyse_gains import parse_ranks
    from moeprune.cli.analyse_text import analysis_text
    from moeprune.stages.analyse import analyse

    made = analyse(
        stats,
        plans=plans,
        output=output,
        ratio=ratio,
        k1=parse_ranks(k1, "--k1"),  # type: ignore[arg-type]
        k2=parse_ranks(k2, "--k2"),
    )
    say(made, analysis_text(made, output), as_json=as_json)
