"""How the values of scan's options are spelled: lists with commas."""

from __future__ import annotations

import math

import click

from moeprune.cli.policy_options import RankType


def ranks(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[int | str, ...]:
    """``4,16,E``, of an option that may be given several times; E is for k2 alone."""
    return tuple(RankType()(part.strip(), option, context) for part in _parts(texts))


def factors(
    context: click.Context, option: click.Parameter, texts: tuple[str, ...]
) -> tuple[float, ...]:
    """``0.8,1.2``: numbers above 0."""
    found = []
    for part in _parts(texts):
        try:
            value = float(part)
        except ValueError:
            value = 0.0
        if not 0 < value < math.inf:
            raise click.BadParameter(f"{part.strip()!r} is no number above 0.", context, option)
        found.append(value)
    return tuple(found)


def _parts(texts: tuple[str, ...]) -> list[str]:
    return [part for text in texts for part in text.split(",")]
