"""How the constraints of a plan read on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprune.core.constraints import id_ranges

if TYPE_CHECKING:
    from moeprune.core.plan import PrunePlan


def constraint_lines(plan: PrunePlan) -> list[str]:
    """What was kept whatever the scores say; none if nothing was asked for."""
    options = plan.options
    lines = []
    parts = []
    if options.get("keep_layers"):
        layers = options["keep_layers"]
        what = f"layer {layers[0]} is" if len(layers) == 1 else f"layers {id_ranges(layers)} are"
        parts.append(f"{what} never pruned")
    if options.get("layer_keep"):
        counts = (f"layer {layer} keeps {n}" for layer, n in options["layer_keep"].items())
        parts.append(", ".join(counts))
    if parts:
        asked = next(
            (
                f"--{key.replace('_', '-')} {options[key]}"
                for key in ("ratio", "keep", "max_bytes")
                if options.get(key) is not None
            ),
            "",
        )
        others = "; the other layers: " + asked if asked else ""
        lines.append("; ".join(parts) + others)
    if options.get("must_keep"):
        lines.append(f"must stay: {_count(options['must_keep'])}")
    if options.get("protect_super_experts"):
        found = plan.details.get("super_experts", {})
        lines.append(
            f"super-experts, protected: {_count(found)}"
            if found
            else "super-experts: none found, so none are protected"
        )
    return lines


def _count(ids: dict[str, list[int]]) -> str:
    shown = ", ".join(f"layer {row}: {id_ranges(experts)}" for row, experts in ids.items())
    number = sum(map(len, ids.values()))
    return f"{number} expert{'s' if number != 1 else ''} ({shown})"
