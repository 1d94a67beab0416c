"""``moeprune eval``."""

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
from moeprune.cli.policy_options import gain_option, policy_options
from moeprune.cli.progress import progress
from moeprune.core.progress import ignore


@click.command("eval")
@model_argument
@output_option("the run, or with --variants a folder of runs", metavar="RUN")
@tasks_option
@click.option(
    "--plan",
    type=click.Path(path_type=Path),
    metavar="PLAN",
    help="Evaluate MODEL without the experts that this plan removes; nothing is written for it.",
)
@policy_options
@gain_option
@click.option(
    "--variants",
    type=click.Path(path_type=Path),
    metavar="FILE.toml",
    help="Evaluate several plans and policies, and MODEL itself, on the same inputs with one load: "
    "[[variant]] tables with name, plan, k1, k2, gain, ablation.",
)
@click.option("--name", metavar="NAME", help="Of the run. Default: of the plan, or of MODEL.")
@click.option(
    "--corpus",
    multiple=True,
    metavar="NAME=SOURCE",
    help="Text for perplexity that calibration or tuning may have seen; sources as in calibrate.",
)
@click.option(
    "--held-out",
    multiple=True,
    metavar="NAME=SOURCE",
    help="Text for perplexity that nothing has seen.",
)
@click.option(
    "--agreement-with",
    metavar="MODEL",
    help="Also say how far the experts are selected as in this model, e.g. before quantisation: of "
    "the texts of --corpus and --held-out, else of the prompts, the share of tokens with the same "
    "expert at each rank, and with the same set. It is loaded first, and then leaves the memory.",
)
@click.option(
    "--answer-loss/--no-answer-loss",
    default=None,
    help="Measure also the loss of right answers, nats per token: of tasks, and of the texts of "
    "--corpus and --held-out. Default: where a plan predicts it (calibrate --loss-aware), so that "
    "both stand beside each other.",
)
@click.option(
    "--degeneration",
    multiple=True,
    metavar="PROMPTS",
    help="Prompts after which the model writes at length, greedily; answers that fall into a loop "
    "are counted. A file of questions, or builtin:NAME or NAME=SOURCE as in calibrate: what a chat "
    "asks, and the first half of any other text.",
)
@click.option(
    "--chunk",
    type=click.IntRange(min=2),
    default=2048,
    show_default=True,
    metavar="N",
    help="Tokens of a chunk of such text; never more than the model has positions for.",
)
@click.option(
    "--chunks",
    type=click.IntRange(min=1),
    metavar="N",
    help="Chunks of each text, from its beginning. Default: all.",
)
@question_options
@click.option("--strict", is_flag=True, help="Exit code 1 where a guard warns.")
@dtype_option("auto")
@device_option
@resume_option("RUN.progress")
@click.option("--overwrite", is_flag=True, help="Replace earlier runs of that name.")
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
    """Ask MODEL, whole or pruned, and keep every answer in a run folder.

    MODEL is any causal language model. 'moeprune compare' reads the folder. If it is interrupted,
    the same command goes on.
    """
    from moeprune.cli.eval_text import eval_json, eval_text
    from moeprune.observe.launch import launched
    from moeprune.stages.eval import eval as evaluate

    said: list[str] = []

    def warn(text: str) -> None:
        said.append(text)
        click.echo(f"warning: {text}", err=True)

    speaks = launched().speaks  # of the processes of a launch, one
    drawn = progress() if speaks else nullcontext(ignore)
    with finishing(aloud=speaks) as stop, drawn as on_progress:
        runs = evaluate(
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
        say(eval_json(runs, output), eval_text(runs, output, said=said), as_json=as_json)
    levels = {guard["level"] for run in runs for guard in run.guards}
    return int("stop" in levels or (strict and bool(levels)))
