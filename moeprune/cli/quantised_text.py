"""How the quantisation of an export reads on a terminal."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from moeprune.checkpoint.composing import LAYERED, MERGING
from moeprune.cli.text import size
from moeprune.core.quantisation import MIXABLE, MIXED, PLAIN

if TYPE_CHECKING:
    from moeprune.stages.quantised import Quantised

_NAMES = {"expert": "routed experts", "attention": "attention", "shared": "shared experts"}
_WORST = 3


def quantised_text(quantised: Quantised | None) -> list[str]:
    """Bytes of each part, and how far the weights are from the source's once they are written."""
    if quantised is None:
        return []
    lines = []
    for part, found in quantised.parts.items():
        name = _NAMES.get(part)
        if name is None or not found.quantised:
            continue
        lines.append(
            f"{name} in {_scheme(quantised)}: {size(found.bytes_before)} -> "
            f"{size(found.bytes_after)} ({found.quantised / found.parameters:.0%} of "
            f"{found.parameters:,} parameters)"
        )
    lines += _needed(quantised)
    error = quantised.to_json().get("error")
    if error is not None:
        worst = ", ".join(
            f"layer {at['layer']} expert {at['expert']} {at['relative']:.3g}"
            for at in error["worst"][:_WORST]
        )
        lines.append(
            f"relative error of the experts' weights {error['relative']:.3g}; largest: {worst}"
        )
    return lines


def _needed(quantised: Quantised) -> list[str]:
    """What transformers needs to read it, where it does not read it by itself."""
    if MERGING in quantised.code:
        return [
            "transformers reads it with trust_remote_code=True: code of the folder joins experts"
        ]
    if LAYERED in quantised.code:
        return [
            "transformers reads layers of different schemes with trust_remote_code=True or after "
            "'import moeprune'"
        ]
    if quantised.options.scheme == "nf4":
        code = "with trust_remote_code=True or " if quantised.code else ""
        return [f"transformers 5 reads it {code}after 'import moeprune'; transformers 4 by itself"]
    return []


def _scheme(quantised: Quantised) -> str:
    if quantised.layers is not None:
        counts = Counter(quantised.layers.schemes)
        each = (
            f"{'as they are' if scheme == PLAIN else scheme} in {count} layer{'s' * (count > 1)}"
            for scheme in reversed(MIXABLE)
            if (count := counts[scheme])
        )
        return f"{MIXED} ({', '.join(each)})"
    (size_of_group,) = quantised.group_sizes.values()
    scheme = quantised.options.scheme
    if scheme == "fp8":
        return f"fp8, blocks of {size_of_group} x {size_of_group}"
    twice = ", scales quantised too" if quantised.options.double_quant else ""
    return f"{scheme}, groups of {size_of_group}{twice}"
