"""How a router makes scores of its logits and weights of its scores, and its block's own factor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from moeprune.architectures._config import StatedExperts
from moeprune.architectures._families import GATINGS, Family
from moeprune.errors import CheckpointError, UnsupportedModelError


def gating_of(stated: StatedExperts, family: Family) -> str:
    """How the router makes scores of logits.

    Raises:
        UnsupportedModelError: config.json states a way that moeprune does not know.
    """
    key = family.gating_key
    gating = stated.level.get(key) if key is not None else None
    if gating is None:
        return family.gating
    if gating not in GATINGS:
        raise UnsupportedModelError(
            f"config.json routes by {gating!r} ({'.'.join((*stated.path, str(key)))}); moeprune "
            f"knows {', '.join(GATINGS)}."
        )
    return str(gating)


def renormalises_of(stated: StatedExperts, family: Family, *, gating: str) -> tuple[bool, str]:
    """Whether the router divides by the sum of the chosen scores; why that is not known, or ""."""
    rule = family.renormalises
    if isinstance(rule, Mapping):
        rule = rule.get(gating, ())
    if rule in ("always", "never"):
        return rule == "always", ""
    keys = (rule,) if isinstance(rule, str) else rule
    if not keys:
        return False, "what its router divides the weights by is not known"
    said = {key: stated.level[key] for key in keys if key in stated.level}
    said = said or {key: family.defaults[key] for key in keys if key in family.defaults}
    key, value = next(iter(said.items()))
    if value is None or value is False:
        return False, ""
    if value in (True, 1):
        return True, ""
    where = ".".join((*stated.path, key))
    return False, f"it is not known what {where} {value!r} in config.json divides weights by"


def gate_scale_of(stated: StatedExperts, family: Family) -> float:
    """The factor that the block applies after the router's weights; 1 where it has none.

    Raises:
        CheckpointError: config.json states something that is no positive number.
    """
    if family.scale is None:
        return 1.0
    level = {**family.defaults, **stated.level}
    if any(level.get(key) == value for key, value in family.scale_unless.items()):
        return 1.0
    value: Any = level.get(family.scale)
    if isinstance(value, str):
        value = family.scale_values.get(value, value)
    if type(value) not in (int, float) or not 0 < value < math.inf:
        where = ".".join((*stated.path, family.scale))
        raise CheckpointError(f"config.json: {where} cannot be {value!r}. Correct it.")
    return float(value)
