"""``moeprune export``."""

from __future__ import annotations

from pathlib import Path

import click

from moeprune.cli.options import (
    json_option,
    model_argument,
    output_option,
    revision_option,
    say,
)
from moeprune.cli.progress import progress


@click.command("export")
@model_argument
@output_option("the pruned checkpoint", metavar="FOLDER")
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    required=True,
    metavar="FILE",
    help="The plan: which experts stay.",
)
@revision_option
@json_option
def command(model: str, output: Path, plan: Path, revision: str | None, as_json: bool) -> None:
    """Write MODEL without the experts that the plan removes, as a checkpoint of its own.

    Copies byte ranges at the speed of the disk: nothing is loaded, cast or re-serialised. The
    folder appears under its name only when it is complete.
    """
    from moeprune.core.plan import PrunePlan
    from moeprune.stages.export import export

    made = PrunePlan.load(plan)  # once: it may come through a pipe
    with progress() as on_progress:
        folder = export(model, plan=made, output=output, revision=revision, on_progress=on_progress)
    count = made.uniform_count
    result = {"output": str(folder), "num_experts": count, "method": made.method}
    say(result, f"{folder}: {count} experts in each MoE layer", as_json=as_json)
