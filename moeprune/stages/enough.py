"""Whether more text would change a plan: looked at while calibration reads, and stored.

The plan looked at is the one that ``plan`` makes unasked, MESA's or REAP's, with a quarter of the
experts removed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moeprune.core.budget import Budget
from moeprune.core.facts import ModelFacts
from moeprune.core.stats import CalibrationStats
from moeprune.core.unseen import reached
from moeprune.core.verdict import verdict
from moeprune.errors import UsageError
from moeprune.stages.auto import measure

if TYPE_CHECKING:
    from moeprune.observe.domains import Corpus

RATIO = 0.25


def check_stable(stable: float, facts: ModelFacts, *, mode: str, shard: tuple[int, int]) -> None:
    """Check that the text can be read until plans are this stable.

    Raises:
        UsageError: it cannot.
    """
    if not 0 < stable <= 1:
        raise UsageError(
            f"--stop-when-stable {stable} is an overlap of plans: more than 0, at most 1."
        )
    if mode == "decode":
        raise UsageError(
            "--stop-when-stable decides how much text is read; in decode mode writing it is the "
            "long part. Give fewer --samples."
        )
    if shard != (0, 1):
        raise UsageError(
            "--stop-when-stable looks at plans of all the text, of which a --shard is a part. "
            "Leave one of them out."
        )
    quarter(facts)


def check_halves(corpora: Sequence[Corpus]) -> None:
    """Check that there are halves of the text to compare.

    Raises:
        UsageError: a domain has a single document, so one half has none of it.
    """
    for corpus in corpora:
        if corpus.total < 2:
            raise UsageError(
                f"--stop-when-stable compares plans of two halves of the text, and domain "
                f"{corpus.name!r} has a single document. Give it more, or leave one of them out."
            )


def quarter(facts: ModelFacts) -> Budget:
    """A quarter of the experts of every layer leaves.

    Raises:
        UsageError: that is not possible.
    """
    return Budget.of(facts, ratio=RATIO, keep=None, allocation="uniform")


def look(stats: CalibrationStats, *, stable: float, before: float | None) -> dict[str, Any]:
    """What is noted of the text so far, and whether it is enough.

    Args:
        stats: of it.
        stable: overlap that the plan must reach, in this round and in the one before.
        before: the overlap of the round before.

    Returns:
        ``documents``, ``tokens``; ``method``: which ``plan`` would choose; ``agree``: method ->
        Jaccard overlap of what the plans of two halves of the text remove, None where a half has
        no text of some domain; ``unseen`` and ``tokens_per_expert``: see
        :func:`moeprune.core.unseen.reached`; ``enough``.
    """
    evidence = measure(stats, budget=quarter(stats.model))
    method = verdict(evidence).method
    overlap = evidence.stability[method]
    return {
        "documents": sum(domain.read or 0 for domain in stats.domains),
        "tokens": sum(domain.num_tokens() for domain in stats.domains),
        "method": method,
        "agree": {
            name: None if value is None else float(value)
            for name, value in evidence.stability.items()
        },
        **reached(stats.model, stats.domains),
        "enough": overlap is not None
        and before is not None
        and bool(min(overlap, before) >= stable),
    }


def agreement_of(entry: Mapping[str, Any]) -> float | None:
    """The overlap of the plan that would be made, after one round."""
    found: float | None = entry["agree"][entry["method"]]
    return found
