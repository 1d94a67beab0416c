"""How the schemes of a plan's layers read on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprune.cli.text import size
from moeprune.core.constraints import id_ranges
from moeprune.core.quantisation import MIXABLE, PLAIN

if TYPE_CHECKING:
    from moeprune.core.plan import PrunePlan

_UNCHANGED = "as they are"


def scheme_lines(plan: PrunePlan) -> list[str]:
    """Which layers are stored how, what that loses and takes; none if the plan says nothing."""
    chosen = plan.quantize
    if chosen is None:
        return []
    parts = []
    for scheme in reversed(MIXABLE):
        layers = sorted(
            {
                layer
                for layer, own in zip(plan.layer_ids, chosen.schemes, strict=True)
                if own == scheme
            }
        )
        if layers:
            name = _UNCHANGED if scheme == PLAIN else scheme
            group = chosen.group_sizes.get(scheme)
            told = f" (groups of {group})" if group else ""
            parts.append(f"{name}{told} in layer{'s' * (len(layers) > 1)} {id_ranges(layers)}")
    lines = [f"experts are stored {'; '.join(parts)}"]
    details = chosen.details
    if "loss" in details and details["worth"]:
        loss, bound, worth = details["loss"], details["bound"], details["worth"]
        proof = "no other choice within the budget loses less"
        if bound < loss:
            proof = f"no choice within the budget loses less than {bound / worth:.4%}"
        how = "rounding and removal" if plan.num_removed else "rounding"
        lines.append(
            f"  {loss / worth:.3%} of all experts' {details['criterion']} is lost to {how}; {proof}"
        )
    if chosen.budget is not None and "bytes" in details:
        lines.append(f"  all files {size(details['bytes'])}, at most {size(chosen.budget)}")
    return lines
