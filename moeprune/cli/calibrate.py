"""``moeprune calibrate``."""

from __future__ import annotations

from contextlib import nullcontext
from pathlib import Path

import click

from moeprune.cli.decode_options import decode_options
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
from moeprune.core.losses import LOSSES, TEMPERATURE
from moeprune.core.progress import ignore
from moeprune.errors import UsageError


def _shard(context: click.Context, _parameter: click.Parameter, text: str) -> tuple[int, int]:
    """A shard as click reads options, so that of several processes one says what is wrong."""
    from moeprune.cli.text import parse_shard

    try:
        return parse_shard(text)
    except UsageError as problem:
        raise click.UsageError(str(problem), context) from problem


def _tokens(context: click.Context, option: click.Parameter, value: str) -> int | None:
    """A number of tokens, None for ``auto``."""
    if value == "auto":
        return None
    return int(click.IntRange(min=1)(value, option, context))


@click.command("calibrate")
@model_argument
@output_option("the statistics (stats.safetensors)")
@click.option(
    "--domain",
    "domains",
    multiple=True,
    metavar="NAME=SOURCE",
    help="A domain and its text: builtin:NAME, a .jsonl, .txt or .parquet file "
    "(FILE.parquet:COLUMN), or hf:ORG/DATASET[/CONFIG]:SPLIT[:COLUMN]. May be given several "
    "times. Default: the six built-in domains.",
)
@click.option(
    "--recipe",
    metavar="FILE.toml",
    help="A file of domains, in place of --domain: your own, or six-domains.toml, which names "
    "public datasets.",
)
@click.option(
    "--samples",
    type=click.IntRange(min=1),
    metavar="N",
    help="Documents per domain, drawn by --seed. Default: the recipe's number, or all; hf: sources "
    "need one.",
)
@click.option(
    "--length",
    type=click.IntRange(min=1),
    metavar="N",
    default=2048,
    show_default=True,
    help="Tokens kept of a document, or (decode) that a prompt may have; never more than the model "
    "has positions for. Below 1024, plans are less stable.",
)
@click.option(
    "--seed",
    type=int,
    metavar="N",
    default=0,
    show_default=True,
    help="Seed of what is drawn: documents, and tokens with --temperature.",
)
@click.option(
    "--chat-template",
    type=click.Choice(["on", "off"]),
    default="on",
    show_default=True,
    help="Whether the tokenizer's chat template writes rows of messages; off: their texts, with a "
    "blank line between.",
)
@click.option(
    "--stop-when-stable",
    type=click.FloatRange(min=0, max=1, min_open=True),
    metavar="SHARE",
    help="Stop reading once plans made from two halves of the text agree on this share of the "
    "experts that they remove (0.9: 90 %).",
)
@click.option(
    "--loss-aware",
    is_flag=True,
    help="Measure also how the loss of the next tokens would change without each expert, for the "
    "criteria fisher, fisher-cf and abs-cf and the method best. Takes about 3.5 times as long.",
)
@click.option(
    "--loss",
    type=click.Choice(LOSSES),
    help="Of which tokens --loss-aware takes the loss. completion: of rows with a prompt or "
    "messages, the answers; of other rows, and with all, every token. Answers alone protect no "
    "prompt and no other text. Default: completion.",
)
@click.option(
    "--loss-temperature",
    type=click.FloatRange(min=0.1, max=100),
    metavar="T",
    help="Logits are divided by T in the loss whose gradient is taken, so that tokens of which the "
    f"model is sure say something too; 1: the plain loss. Default: {TEMPERATURE:g}.",
)
@click.option(
    "--mode",
    type=click.Choice(["prefill", "decode"]),
    default="prefill",
    show_default=True,
    help="prefill: measure the tokens of the texts. decode: let the model continue each prompt, "
    "and measure the tokens that it writes.",
)
@decode_options
@click.option(
    "--batch-tokens",
    default="auto",
    show_default=True,
    metavar="N|auto",
    callback=_tokens,
    help="Tokens in one forward pass, padding included. auto: 8192, or on a GPU as many as fit, "
    "which is tried before measuring.",
)
@click.option(
    "--memory",
    metavar="SIZE",
    help="Memory that may be used, e.g. 20GB: the model is read from its files a layer at a time. "
    "Default: so only where it does not fit.",
)
@dtype_option(
    "auto",
    auto="the stored one, or float32 where that is measured to be much faster here and fits",
)
@device_option
@click.option(
    "--shard",
    default="0/1",
    show_default=True,
    metavar="I/N",
    callback=_shard,
    help="Measure documents I, I+N, … only; add shards up with 'moeprune merge'.",
)
@click.option(
    "--expert-parallel",
    type=click.IntRange(min=1),
    default=1,
    show_default=True,
    metavar="N",
    help="The N processes of a launch (torchrun) share the experts of one model, in place of the "
    "texts.",
)
@resume_option("OUTPUT.progress")
@click.option("--overwrite", is_flag=True, help="Replace an existing stats file.")
@revision_option
@trust_option
@click.option(
    "--gating",
    type=click.Choice(["softmax", "sigmoid", "sqrtsoftplus"]),
    help="How the router turns logits into scores; only for a model that needs its own code.",
)
@json_option
def command(model: str, output: Path, chat_template: str, as_json: bool, **options: object) -> None:
    """Measure how MODEL routes each domain's text, and save the sums.

    The one long job: everything later is decided from the file it writes. If it is interrupted,
    the same command goes on.
    """
    from moeprune.cli.text import stats_json, stats_text
    from moeprune.observe.launch import launched
    from moeprune.stages.calibrate import calibrate

    speaks = launched().speaks  # of the processes of a launch, one
    drawn = progress() if speaks else nullcontext(ignore)
    with finishing(aloud=speaks) as stop, drawn as on_progress:
        stats = calibrate(
            model,
            output=output,
            chat_template=chat_template == "on",
            stop=stop,
            on_progress=on_progress,
            on_warning=_warn,
            on_story=lambda text: click.echo(text, err=True),
            **{**options, "domains": options["domains"] or None},  # type: ignore[arg-type]
        )
    if speaks:
        say(stats_json(stats, output), stats_text(stats, output), as_json=as_json)


def _warn(text: str) -> None:
    click.echo(f"warning: {text}", err=True)
