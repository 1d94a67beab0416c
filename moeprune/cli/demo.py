"""``moeprune demo``."""

from __future__ import annotations

from pathlib import Path

import click

from moeprune.cli.options import json_option, say
from moeprune.cli.progress import progress


@click.command("demo")
@click.option(
    "-o",
    "--output",
    type=click.Path(path_type=Path),
    default=Path("demo-out"),
    show_default=True,
    metavar="DIR",
    help="Folder for every artefact; must not exist.",
)
@json_option
def command(output: Path, as_json: bool) -> None:
    """Run the whole pipeline on the embedded model: no network, about a minute.

    calibrate, then plan, export and verify for four methods at two ratios, then eval of all of them
    on held-out questions, and compare: accuracy per method and domain with the worst domain marked,
    flips and paired p-values.
    """
    from moeprune.cli.demo_text import demo_text
    from moeprune.stages.demo import demo

    with progress() as on_progress:
        result = demo(output, on_progress=on_progress)
    say(result.to_json(), demo_text(result), as_json=as_json)
