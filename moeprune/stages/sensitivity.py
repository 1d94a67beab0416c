"""How far MESA's plan depends on its own settings, and on how much text was measured.

The MESA paper's tables 11 and 12, on any stats. Every plan has the same budget; losses are of the
domain that loses most, on all of the text.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import combinations
from typing import Any

import numpy as np

from moeprune.allocators import mesa, rank
from moeprune.core.budget import Budget
from moeprune.core.choice import Mask, domain_loss, jaccard, real_LE
from moeprune.core.folds import has_text
from moeprune.core.methods import MASS
from moeprune.core.pooling import domain_mass_DLE, row_norm
from moeprune.core.stats import FOLDS, CalibrationStats
from moeprune.stages.scoring import Scorer

STEPS = (1, 3, 5, 10, 15, 20, 30, 40, 80)
BOOSTS = (0.01, 0.03, 0.05, 0.08, 0.10, 0.15, 0.20, 0.25, 0.30, 0.40, 0.60)


def mesa_settings(stats: CalibrationStats, budget: Budget) -> dict[str, Any]:
    """Steps, boost and decay, one changed at a time.

    Returns:
        ``steps``, ``boost`` and ``decay``: a list of entries with ``loss`` (of the worst domain),
        ``jaccard`` (of what leaves, with the plan of the most steps, the default boost, the default
        decay), ``best_step`` and ``oscillation`` (standard deviation of the loss over the second
        half of the steps).
    """
    real = real_LE(stats.model.num_experts)
    scorer = Scorer(stats, MASS, options={})
    score_LE, worth_DLE = row_norm(scorer.pooled()), scorer.by_domain()

    def run(**options: Any) -> mesa.Trace:
        return mesa.trace(score_LE, worth_DLE=worth_DLE, budget=budget, **options)

    def table(name: str, values: tuple[Any, ...], reference: Mask) -> list[dict[str, Any]]:
        lines = []
        for value in values:
            found = run(**{name: value})
            late = found.losses[len(found.losses) // 2 :]
            lines.append(
                {
                    name: value,
                    "loss": found.losses[found.best_step],
                    "jaccard": jaccard(real & ~found.keep_LE, real & ~reference),
                    "best_step": found.best_step,
                    "oscillation": float(np.std(late)),
                }
            )
        return lines

    default_LE = run().keep_LE
    return {
        "steps": table("steps", STEPS, run(steps=STEPS[-1]).keep_LE),
        "boost": table("boost", BOOSTS, default_LE),
        "decay": table("decay", tuple(mesa.DECAYS), default_LE),
    }


def text_volume(stats: CalibrationStats, budget: Budget) -> list[dict[str, Any]]:
    """Plans from one, two and three of the four folds against those from all of the text.

    Returns:
        An entry for each number of folds: ``folds``, ``plans`` (how many choices of folds there
        are), and of ``mesa`` and ``reap`` the mean and the least overlap with the plan from all of
        the text, and the mean loss of the worst domain. Nothing where a fold lacks text of some
        domain: what the others hold may then be all of the text.
    """
    if not all(has_text(stats, (fold,)) for fold in range(FOLDS)):
        return []
    real = real_LE(stats.model.num_experts)
    mass_DLE = domain_mass_DLE(stats)
    by_mass, by_reap = Scorer(stats, MASS, options={}), Scorer(stats, "reap", options={})

    def mesa_of(folds: tuple[int, ...] | None) -> Mask:
        score_LE = row_norm(by_mass.pooled(folds=folds))
        worth_DLE = by_mass.by_domain(folds=folds)
        return mesa.allocate(score_LE, worth_DLE=worth_DLE, budget=budget).keep_LE

    def reap_of(folds: tuple[int, ...] | None) -> Mask:
        score_LE = by_reap.pooled(folds=folds)
        return rank.allocate(score_LE, worth_DLE=score_LE[None], budget=budget).keep_LE

    choosers: dict[str, Callable[[tuple[int, ...] | None], Mask]] = {
        "mesa": mesa_of,
        "reap": reap_of,
    }
    whole = {name: real & ~choose(None) for name, choose in choosers.items()}
    lines: list[dict[str, Any]] = []
    for count in range(1, FOLDS):
        subsets = list(combinations(range(FOLDS), count))
        line: dict[str, Any] = {"folds": count, "plans": len(subsets)}
        for name, choose in choosers.items():
            keeps = [choose(folds) for folds in subsets]
            same = [jaccard(real & ~keep_LE, whole[name]) for keep_LE in keeps]
            losses = [domain_loss(mass_DLE, keep_LE).max() for keep_LE in keeps]
            line[name] = {
                "jaccard": float(np.mean(same)),
                "jaccard_least": min(same),
                "loss": float(np.mean(losses)),
            }
        lines.append(line)
    return lines
