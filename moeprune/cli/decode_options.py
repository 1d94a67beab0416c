"""Options of ``calibrate --mode decode``."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]

_OPTIONS = (
    click.option(
        "--max-new-tokens",
        type=click.IntRange(min=2),
        metavar="N",
        help="decode: tokens the model may write after each prompt. [default: 512, or half of the "
        "model's positions]",
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0),
        metavar="T",
        help="decode: draw tokens from softmax(logits / T), by --seed. [default: 0, greedy]",
    ),
    click.option(
        "--thinking",
        type=click.Choice(["on", "off", "default"]),
        help="decode: set the chat template's switch for thinking; default: leave it alone.",
    ),
    click.option(
        "--prompt-length",
        type=click.IntRange(min=1),
        metavar="N",
        help="decode: tokens of a plain text that are its prompt. [default: its first half]",
    ),
    click.option(
        "--generations",
        multiple=True,
        metavar="[NAME=]FILE.jsonl",
        help="decode: measure completions that were written already: rows with a prompt and its "
        "completion, and their domain where NAME is not given. May be given several times.",
    ),
)


def decode_options(command: Command) -> Command:
    """Give a command all of them, in this order."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command
