"""Options of the commands that ask a model questions."""

from __future__ import annotations

import click

from moeprune.cli.eval_values import amount, expected, names
from moeprune.cli.options import Command

_QUESTIONS = (
    click.option(
        "--limit",
        type=click.IntRange(min=1),
        metavar="N",
        help="Questions of each task, drawn by the task's seed. Default: all.",
    ),
    click.option(
        "--shots", type=click.IntRange(min=0), metavar="K", help="Solved questions before."
    ),
    click.option(
        "--chat-template",
        type=click.Choice(["on", "off"]),
        help="Whether questions are written as a chat; to be stated where the tokenizer has a "
        "template.",
    ),
    click.option(
        "--thinking",
        type=click.Choice(["on", "off"]),
        help="Whether the model may think; to be stated where the chat template knows it.",
    ),
    click.option(
        "--think-end",
        metavar="TEXT",
        default="</think>",
        show_default=True,
        help="Text after which the answer stands where the model thinks, for tasks of lm-eval.",
    ),
    click.option(
        "--max-new-tokens",
        type=click.IntRange(min=1),
        metavar="N",
        help="Budget of written answers.",
    ),
    click.option(
        "--temperature",
        type=click.FloatRange(min=0),
        metavar="T",
        help="0: greedy; above, tokens are drawn.",
    ),
    click.option(
        "--seeds",
        type=click.IntRange(min=1),
        default=1,
        show_default=True,
        metavar="N",
        help="How often a question is asked whose answer is drawn.",
    ),
    click.option(
        "--batch-size",
        default="auto",
        show_default=True,
        metavar="N|auto",
        callback=amount,
        help="Sequences side by side; in float32 it changes no answer.",
    ),
    click.option(
        "--expect",
        multiple=True,
        metavar="TASK=ACC",
        callback=expected,
        help="Accuracy that the unpruned model is known to reach, as 0.715 or 71.5%; far below it, "
        "the protocol is wrong.",
    ),
    click.option(
        "--effect",
        type=click.FloatRange(min=0, max=100, min_open=True),
        default=1.0,
        show_default=True,
        metavar="POINTS",
        help="Difference in accuracy that you look for: too few questions for it are warned of.",
    ),
    click.option(
        "--include",
        multiple=True,
        metavar="FOLDER",
        help="YAML tasks of your own for lm_eval:NAME.",
    ),
)


def tasks_option(function: Command) -> Command:
    """``--tasks``: what to ask."""
    return click.option(
        "--tasks",
        multiple=True,
        metavar="A,B",
        callback=names,
        help="What to ask: task files (.toml, or .jsonl of questions), folders of them, or "
        "lm_eval:NAME. Several with commas, or by giving the option again.",
    )(function)


def question_options(function: Command) -> Command:
    """How tasks are asked, and how answers are judged."""
    for option in reversed(_QUESTIONS):
        function = option(function)
    return function
