"""Options that state how many experts run, and what their weights are divided by."""

from __future__ import annotations

from typing import Any

import click

from moeprune.cli.options import Command
from moeprune.core.policy_words import ALL


class RankType(click.ParamType[int | str]):
    """A whole number from 1, or ``E``; of a k₁ a number."""

    name = "rank"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> int | str:
        """The number, or the word."""
        if isinstance(value, int):
            return value
        k1 = param is not None and param.name == "k1"
        if value == ALL and not k1:
            return ALL
        try:
            number = int(value)
        except ValueError:
            number = 0
        if number < 1:
            if k1:
                why = f", {ALL} is for --k2" if value == ALL else ""
                self.fail(f"{value!r} is no whole number from 1{why}.", param, ctx)
            self.fail(f"{value!r} is neither a whole number from 1 nor {ALL}, all experts.")
        return number


def policy_options(function: Command) -> Command:
    """``--k1`` and ``--k2``: always together."""
    for option in (
        click.option(
            "--k2",
            type=RankType(),
            metavar="N|E",
            help="With --k1: divide their weights by the probability of the top N, or of all: E.",
        ),
        click.option(
            "--k1",
            type=click.IntRange(min=1),
            metavar="N",
            help="Run N experts per token instead of the model's own number; needs --k2.",
        ),
    ):
        function = option(function)
    return function


def gain_option(function: Command) -> Command:
    """``--gain``: of every weight."""
    return click.option(
        "--gain",
        type=click.FloatRange(min=0, min_open=True),
        metavar="A",
        help="Multiply all weights by A.",
    )(function)
