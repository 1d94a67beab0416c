"""How ratios, layers and counts of layers are spelled on the command line."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moeprune.errors import UsageError

_NUMBER = re.compile(r"-?[0-9]{1,9}")


def parse_ratios(text: str | None) -> tuple[float, ...]:
    """``"0.125,0.25"`` to numbers; None to none.

    Raises:
        UsageError: not numbers, or one twice.
    """
    if text is None:
        return ()
    ratios = []
    for part in text.split(","):
        try:
            ratios.append(float(part))
        except ValueError:
            raise UsageError(
                f"--ratio {text!r}: {part.strip()!r} is not a number; use e.g. 0.25, or several as "
                "in 0.125,0.25."
            ) from None
    if len(set(ratios)) != len(ratios):
        raise UsageError(f"--ratio {text} names a ratio twice; name each once.")
    return tuple(ratios)


def parse_layers(text: str | None) -> tuple[int, ...]:
    """``"0,1,-1"`` to layer ids; None to none.

    Raises:
        UsageError: not whole numbers.
    """
    if text is None:
        return ()
    parts = [part.strip() for part in text.split(",")]
    for part in parts:
        if not _NUMBER.fullmatch(part):
            raise UsageError(
                f"--keep-layers {text!r}: {part!r} is not a layer; use ids as in 0,1,-1."
            )
    return tuple(map(int, parts))


def parse_layer_keep(texts: Sequence[str]) -> dict[int, int]:
    """``("3=48",)`` to ``{3: 48}``.

    Raises:
        UsageError: not of that form, or a layer twice.
    """
    counts: dict[int, int] = {}
    for text in texts:
        layer, equals, count = text.partition("=")
        if not equals or not _NUMBER.fullmatch(layer) or not _NUMBER.fullmatch(count):
            raise UsageError(f"--layer-keep {text!r} is not LAYER=EXPERTS, e.g. 3=48.")
        if int(layer) in counts:
            raise UsageError(f"--layer-keep {text}: layer {int(layer)} has a count already.")
        counts[int(layer)] = int(count)
    return counts
