"""``moeprune plan show``."""

from __future__ import annotations

from pathlib import Path

import click

from moeprune.cli.options import json_option, say


@click.command("show")
@click.argument("plan", type=click.Path(path_type=Path), metavar="PLAN")
@json_option
def command(plan: Path, as_json: bool) -> None:
    """Print what the plan in the file PLAN says, after checking it.

    If its lists of kept experts were edited by hand, the losses, size and stability in the file are
    of the plan before the edit and are not shown.
    """
    from moeprune.cli.plan_text import shown_text
    from moeprune.core.plan import PrunePlan

    made = PrunePlan.load(plan)
    result = made.without_stale().to_json() | {"edited": made.edited}
    say(result, shown_text(made, plan), as_json=as_json)
