"""What config.json says of the experts that run per token, and under which keys."""

from __future__ import annotations

from moeprune.architectures._config import (
    LEVELS,
    TOP_K_KEYS,
    Config,
    StatedExperts,
    agreed,
    descend,
)
from moeprune.architectures._families import Family
from moeprune.errors import CheckpointError


def top_k_of(stated: StatedExperts, family: Family) -> int:
    """Experts run per token.

    Raises:
        CheckpointError: not stated and no default, stated twice, or not within 1..E.
    """
    top_k = agreed(stated.level, TOP_K_KEYS, stated.path)
    if top_k is None:
        top_k = agreed(family.defaults, TOP_K_KEYS, ())
    if top_k is None:
        raise CheckpointError(
            "config.json does not say how many experts run per token "
            f"(model_type {family.model_type}): add num_experts_per_tok."
        )
    if not 1 <= top_k <= stated.count:
        raise CheckpointError(
            f"config.json runs {top_k} experts per token, but states {stated.count} experts "
            f"({stated.keys[0]}). Correct one of them."
        )
    return top_k


def top_k_keys_of(
    config: Config, stated: StatedExperts, family: Family
) -> tuple[tuple[str, ...], ...]:
    """Path of every key that states how many experts run per token.

    Of several levels that state the same number, which one is read is up to the loader. Where none
    states it, the key that the family's default has.
    """
    top_k = top_k_of(stated, family)
    found = tuple(
        (*path, key)
        for path in LEVELS
        if (level := descend(config, path)) is not None
        for key in TOP_K_KEYS
        if type(level.get(key)) is int and level[key] == top_k
    )
    if any(path[:-1] == stated.path for path in found):
        return found
    key = next((key for key in TOP_K_KEYS if key in family.defaults), TOP_K_KEYS[0])
    return (*found, (*stated.path, key))
