"""The options of ``moeprune plan`` that only ``--method evoesap`` has."""

from __future__ import annotations

import click

from moeprune.cli.options import Command, device_option, revision_option, trust_option

_OPTIONS = (
    click.option("--model", metavar="MODEL", help="The model of the stats."),
    click.option(
        "--search-text",
        multiple=True,
        metavar="NAME=SOURCE",
        help="Text to judge plans by, from any source that calibrate takes; repeat for more "
        "domains. Documents that calibration used are left out. [default: what calibration left "
        "of the built-in domains]",
    ),
    click.option(
        "--search-samples",
        type=click.IntRange(min=1),
        metavar="N",
        help="Documents a domain. [default: 16]",
    ),
    click.option(
        "--search-length",
        type=click.IntRange(min=1),
        metavar="T",
        help="Tokens kept of a document. [default: as calibrated]",
    ),
    click.option(
        "--quick",
        is_flag=True,
        help="A first look: --generations 10 --population 16 --search-samples 4.",
    ),
    click.option(
        "--generations",
        type=click.IntRange(min=0),
        metavar="N",
        help="How long to search; 0 gives the uniform plan. [default: 50]",
    ),
    click.option(
        "--population",
        type=click.IntRange(min=1),
        metavar="N",
        help="Plans of a generation. [default: 32]",
    ),
    click.option(
        "--elites",
        type=click.IntRange(min=1),
        metavar="N",
        help="Plans that survive a generation. [default: 4]",
    ),
    click.option(
        "--delta",
        type=click.IntRange(min=1),
        metavar="N",
        help="Most experts (or units of --multiple-of) that move at once. [default: 4]",
    ),
    click.option(
        "--mutations",
        type=click.IntRange(min=1),
        metavar="N",
        help="Most moves from parent to child. [default: 3]",
    ),
    click.option(
        "--objective",
        type=click.Choice(["mean", "worst-domain"]),
        help="What to raise: the mean over domains, or the lowest. [default: mean]",
    ),
    click.option(
        "--top-p",
        type=float,
        help="Share of the model's next-token probability to compare. [default: 0.999]",
    ),
    click.option(
        "--cache",
        metavar="SIZE",
        help="Memory for hidden states that plans share, e.g. 16GB. [default: 4GiB]",
    ),
    click.option(
        "--search-batch-tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help="Tokens of one forward pass, padding included. [default: 2048]",
    ),
    click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        help="Number type to load the model in. [default: auto, the stored one]",
    ),
    device_option,
    revision_option,
    trust_option,
)


SEARCH = (
    "model",
    "search_text",
    "search_samples",
    "search_length",
    "quick",
    "generations",
    "population",
    "elites",
    "delta",
    "mutations",
    "objective",
    "top_p",
    "cache",
    "search_batch_tokens",
    "dtype",
    "device",
    "revision",
    "trust_remote_code",
)


def search_options(function: Command) -> Command:
    """All of them, in this order."""
    for option in reversed(_OPTIONS):
        function = option(function)
    return function
