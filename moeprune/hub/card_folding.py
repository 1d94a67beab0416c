"""What a model card says of routing: by the code that is with it, or by a gain in the weights."""

from __future__ import annotations

from collections.abc import Sequence

from moeprune.core.policy import RoutingPolicy
from moeprune.hub.card_routing import Changed, experts_run, routing_section
from moeprune.hub.markdown import escape


def routed(
    changed: Changed | None, form: str, gains: Sequence[float] | None, notes: Sequence[str]
) -> str:
    """The section on routing; nothing where it is the source's.

    Args:
        changed: k₁ and k₂ of this model, and of the source; None: as the source.
        form: of the export.
        gains: (L,) factor of what the experts of each layer give; None: code does it.
        notes: one line each.
    """
    if changed is None:
        return ""
    if gains is None:
        return routing_section(*changed, per_layer=form == "per-layer")
    return folding_section(*changed, gains, [escape(note) for note in notes])


def folding_section(
    policy: RoutingPolicy, native: RoutingPolicy, gains: Sequence[float], notes: Sequence[str]
) -> str:
    """The section on routing of a folded export.

    Args:
        policy: k₁ and k₂ that it stands for.
        native: of the source.
        gains: (L,) factor of what the experts of each layer give.
        notes: one line each.
    """
    instead = ", as in the source" if policy.k1 == native.k1 else f" in place of {native.k1}"
    text = (
        f"## Routing\n\n{experts_run(policy.k1)} per token{instead}: config.json says so, and "
        "every runtime does it. "
    )
    if all(gain == 1.0 for gain in gains):
        return text + "No weight was changed."
    least, most = (f"{value:.4g}" for value in (min(gains), max(gains)))
    return (
        f"{text}Their weights should be divided by the mass of a token's top {policy.k2} (k₂), "
        "which no runtime does by itself. In its place, what the experts of a layer give is "
        f"multiplied by a constant ({least} to {most}): the last linear map of each expert, or its "
        "scale where it is quantised, rounded to its own type. The constant is the mean over "
        "calibration text; a token's own ratio differs from it: measure what it costs. "
        "`moeprune.json` lists the constants of all layers."
        + "".join(f"\n\nNote: {note}" for note in notes)
    )
