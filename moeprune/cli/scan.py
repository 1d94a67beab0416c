"""``moeprune scan``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path
from typing import Any

import click

from moeprune.cli.eval_options import question_options, tasks_option
from moeprune.cli.interrupt import finishing
from moeprune.cli.options import (
    device_option,
    dtype_option,
    json_option,
    model_argument,
    output_option,
    resume_option,
    revision_option,
    say,
    trust_option,
)
from moeprune.cli.progress import progress
from moeprune.cli.scan_values import factors, ranks
from moeprune.core.progress import ignore


@click.command("scan")
@model_argument
@output_option("the scan: scan.json and a run folder a row", metavar="SCAN")
@click.option(
    "--k1",
    multiple=True,
    metavar="N,…",
    callback=ranks,
    help="Experts that run per token. Default: half of the model's own number.",
)
@click.option(
    "--k2",
    multiple=True,
    metavar="N,E,…",
    callback=ranks,
    help="Ranks whose probability their weights are divided by; E: all. For every k1, k1 itself, "
    "k1 + 1, k and 2k are always tried, too.",
)
@tasks_option
@click.option(
    "--corpus",
    multiple=True,
    metavar="NAME=SOURCE",
    help="Text to choose k2 by; sources as in calibrate. Without --held-out, every other document "
    "is held out. Default: the built-in texts.",
)
@click.option(
    "--held-out",
    multiple=True,
    metavar="NAME=SOURCE",
    help="Other text, on which the choice is looked at; goes with --corpus.",
)
@click.option(
    "--chunk",
    type=click.IntRange(min=2),
    default=2048,
    show_default=True,
    metavar="N",
    help="Tokens of a chunk of text; never more than the model has positions for.",
)
@click.option(
    "--chunks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Chunks of each text and split. Default: all; of built-in texts 16.",
)
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    metavar="PLAN",
    help="Scan what this plan leaves of MODEL.",
)
@click.option(
    "--gain",
    multiple=True,
    metavar="A,…",
    callback=factors,
    help="Factors of all weights, each tried at k2 = k1.",
)
@click.option(
    "--ablations",
    is_flag=True,
    help="Equal weights, sampled and random experts, at the model's own k1 and k2.",
)
@click.option(
    "--stats",
    type=click.Path(path_type=Path),
    metavar="STATS",
    help="Of calibrate: beside each point, what 'export --fold-gain' would write for it.",
)
@question_options
@click.option("--strict", is_flag=True, help="Exit code 1 where a guard warns.")
@dtype_option("auto")
@device_option
@resume_option("SCAN.progress")
@click.option("--overwrite", is_flag=True, help="Replace an earlier scan of that name.")
@revision_option
@trust_option
@json_option
def command(
    model: str,
    output: Path,
    chat_template: str | None,
    thinking: str | None,
    expect: dict[str, float],
    effect: float,
    strict: bool,
    as_json: bool,
    **options: Any,
) -> int:
    """Try fewer experts per token (k1), with weights over the top k2.

    One load of MODEL for all of it: perplexity on text to choose by and on text that is held out,
    and tasks, each row paired with the model's own routing. Says which k2 is best for each k1, how
    far that can be trusted, and what to run next. First it is checked that the model can be
    rerouted at all. If it is interrupted, the same command goes on.
    """
    from moeprune.cli.scan_text import scan_json, scan_text
    from moeprune.observe.launch import launched
    from moeprune.stages.scan import scan

    said: list[str] = []

    def warn(text: str) -> None:
        said.append(text)
        click.echo(f"warning: {text}", err=True)

    speaks = launched().speaks  # of the processes of a launch, one
    drawn = progress() if speaks else nullcontext(ignore)
    with finishing(aloud=speaks) as stop, drawn as on_progress:
        result = scan(
            model,
            output=output,
            chat_template=None if chat_template is None else chat_template == "on",
            thinking=None if thinking is None else thinking == "on",
            expected=expect,
            effect=effect / 100,
            stop=stop,
            on_progress=on_progress,
            on_warning=warn,
            **options,
        )
    if speaks:
        text = scan_text(result, output, said=said)
        say(scan_json(result, output), text, as_json=as_json)
    levels = {guard["level"] for guard in result.guards}
    return int("stop" in levels or (strict and bool(levels)))
