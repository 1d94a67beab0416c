"""How the values of eval's options are spelled."""

from __future__ import annotations

from pathlib import Path

import click


def names(
    context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> tuple[str, ...]:
    """Names with commas between; a file that exists under a whole text is that file."""
    found: list[str] = []
    for text in texts:
        parts = [text] if _exists(text) else [part.strip() for part in text.split(",")]
        if not all(parts):
            raise click.UsageError(f"--tasks {text!r} names nothing at a comma.", context)
        found += parts
    return tuple(found)


def amount(context: click.Context, option: click.Parameter, text: str) -> int | None:
    """A number from 1, None for ``auto``."""
    return None if text == "auto" else int(click.IntRange(min=1)(text, option, context))


def expected(
    context: click.Context, _option: click.Parameter, texts: tuple[str, ...]
) -> dict[str, float]:
    """Task -> accuracy in [0, 1], of texts ``TASK=0.715`` or ``TASK=71.5%``."""
    found: dict[str, float] = {}
    for text in texts:
        name, equals, number = text.rpartition("=")
        try:
            value = float(number.removesuffix("%")) / (100 if number.endswith("%") else 1)
        except ValueError:
            value = -1.0
        if not equals or not name or not 0 <= value <= 1:
            raise click.UsageError(
                f"--expect {text!r} is not TASK=ACC; give an accuracy as 0.715 or 71.5%.", context
            )
        found[name] = value
    return found


def _exists(text: str) -> bool:
    try:
        return Path(text).exists()
    except (OSError, ValueError):
        return False
