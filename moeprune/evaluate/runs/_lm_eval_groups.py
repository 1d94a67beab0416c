"""Which of lm-eval's tasks are reported as one: those of a group, if they are scored alike."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from moeprune.core.sample import Sample


def families(
    answered: Mapping[str, Sequence[Sample]], groups: Mapping[str, Any]
) -> dict[str, str | None]:
    """Task of lm-eval -> the largest such group that it is in; None: it stands for itself.

    Args:
        answered: task -> its answers, of which the names of the metrics are compared.
        groups: group -> its tasks and groups, as results files say.
    """
    found: dict[str, str | None] = dict.fromkeys(answered)
    sizes = dict.fromkeys(answered, 1)
    scored = {name: _scored(samples) for name, samples in answered.items()}
    for group in sorted(group for group in groups if group not in answered):
        own = sorted(_leaves(group, groups, set()) & set(answered))
        if len({scored[name] for name in own}) == 1:
            for name in own:
                if len(own) > sizes[name]:
                    found[name], sizes[name] = group, len(own)
    return found


def _scored(samples: Sequence[Sample]) -> tuple[object, frozenset[str]]:
    metrics = frozenset(name for sample in samples for name in sample.metrics)
    return samples[0].details.get("judged_by"), metrics


def _leaves(name: str, groups: Mapping[str, Any], above: set[str]) -> set[str]:
    """The tasks below a group; a group within itself, which cannot be, adds none."""
    inside = groups.get(name)
    if not isinstance(inside, list) or not inside:
        return {name}
    if name in above:
        return set()
    parts = (_leaves(item, groups, above | {name}) for item in inside if isinstance(item, str))
    return set().union(*parts)
