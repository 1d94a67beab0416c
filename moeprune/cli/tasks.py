"""``moeprune tasks``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import click

from moeprune import plugins
from moeprune.cli.options import json_option, output_option, printable, say
from moeprune.evaluate import layouts

if TYPE_CHECKING:
    from moeprune.stages.tasks import WrittenTask

LAYOUTS = plugins.names(layouts)


@click.command("tasks", epilog=f"LAYOUT is one of: {', '.join(LAYOUTS)}.")
@click.argument("layout", metavar="LAYOUT")
@output_option("NAME.toml, NAME.jsonl and NAME.shots.jsonl", metavar="FOLDER")
@click.option(
    "--questions",
    multiple=True,
    metavar="[NAME=]SOURCE",
    help="A labelled split: a .jsonl, .json, .csv or .parquet file, a folder of them, or "
    "hf:ORG/DATASET[/CONFIG]:SPLIT. NAME becomes its domain. May be repeated. Default: where the "
    "Hub has it.",
)
@click.option(
    "--shots",
    multiple=True,
    metavar="[NAME=]SOURCE",
    help="Another split, for solved questions; none: ask without. May be repeated. Default: where "
    "the Hub has it, if the layout's protocol shows any.",
)
@click.option("--name", help="Of the task. Default: the layout's.")
@click.option("--limit", type=int, help="At most that many questions, drawn by --seed.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of the draw.")
@click.option("--overwrite", is_flag=True, help="Replace an earlier task of that name.")
@json_option
def command(
    layout: str,
    output: Path,
    questions: tuple[str, ...],
    shots: tuple[str, ...],
    name: str | None,
    limit: int | None,
    seed: int,
    overwrite: bool,
    as_json: bool,
) -> None:
    """Turn a public data set, in the LAYOUT that the Hub has, into a task for 'moeprune eval'.

    The task file states how the questions are asked, and is meant to be read and changed.
    """
    from moeprune.stages.tasks import tasks

    made = tasks(
        layout,
        output=output,
        questions=questions or None,
        shots=shots or None,
        name=name,
        limit=limit,
        seed=seed,
        overwrite=overwrite,
    )
    body = {
        "task": str(made.path),
        "name": made.name,
        "kind": made.protocol.kind,
        "questions": made.questions,
        "domains": dict(made.domains),
        "shots": made.shots,
        "shown": made.protocol.shots,
        "few_shots": list(made.few),
    }
    say(body, _text(made), as_json=as_json)
    if made.few:
        named = ", ".join(made.few[:3]) + (", …" if len(made.few) > 3 else "")
        click.echo(
            printable(
                f"warning: {len(made.few)} domains have fewer than {made.protocol.shots} solved "
                f"questions of their own and are shown others' ({named})."
            ),
            err=True,
        )


def _text(made: WrittenTask) -> str:
    several = f" in {len(made.domains):,} domains" if len(made.domains) > 1 else ""
    shown = f"after {made.protocol.shots} solved ones" if made.protocol.shots else "without shots"
    beside = f" ({made.shots:,} are there)" if made.shots else ""
    return (
        f"{made.path}: {made.questions:,} questions{several}, kind {made.protocol.kind}, {shown}"
        f"{beside}.\nNext: moeprune eval MODEL --tasks {made.path} -o RUN"
    )
