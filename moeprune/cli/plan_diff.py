"""``moeprune plan diff``."""

from __future__ import annotations

from pathlib import Path

import click

from moeprune.cli.options import json_option, say


@click.command("diff")
@click.argument("a", type=click.Path(path_type=Path), metavar="A")
@click.argument("b", type=click.Path(path_type=Path), metavar="B")
@json_option
def command(a: Path, b: Path, as_json: bool) -> None:
    """Compare the plans in the files A and B: which experts only one of them keeps.

    Both must be for one model. Agreement is the Jaccard overlap of the removed experts: those that
    both remove, of those that either does.
    """
    from moeprune.cli.plan_diff_text import diff_text
    from moeprune.core.plan import PrunePlan
    from moeprune.core.plan_diff import diff_plans

    plans = PrunePlan.load(a), PrunePlan.load(b)
    found = diff_plans(*plans)
    result = {"a": str(a), "b": str(b)} | found.to_json()
    say(result, diff_text(found, plans, (a, b)), as_json=as_json)
