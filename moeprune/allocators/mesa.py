"""MESA, Minimax Expert Score Allocation (Algorithm 1): protect the domain that would lose most.

A plan by router mass removes experts that few tokens use on average, and so may take most of what
one domain needs. MESA plans, looks which domain lost the largest share of its own router mass,
raises the scores of that domain's experts a little, and plans again; of all plans seen, the one
whose worst domain loses least is returned. Step 0 plans by router mass itself, so the result is
never worse than that by this measure.

One reading of the paper is fixed here: its line 2 counts t = 1..T while line 9 divides by T - 1.
We count t = 0..T-1, so the boost starts at η₀ and ends at half of it.

D domains, L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from moeprune.core.budget import Budget
from moeprune.core.choice import Mask, Outcome, domain_loss, keep_highest
from moeprune.core.pooling import row_norm
from moeprune.core.stats import Array
from moeprune.errors import UsageError
from moeprune.plugins import known

OPTIONS = ("steps", "boost", "decay")

# Share of η₀ at progress 0..1; both falling schedules end at half the boost, as the paper's does.
DECAYS: Mapping[str, Callable[[float], float]] = {
    "linear": lambda progress: 1 - 0.5 * progress,
    "cosine": lambda progress: 0.75 + 0.25 * math.cos(math.pi * progress),
    "constant": lambda progress: 1.0,
}


@dataclass(frozen=True, slots=True)
class Trace:
    """What Algorithm 1 met on its way.

    Attributes:
        keep_LE: (L, E) bool: the best plan, True = the expert stays.
        losses: (T,) loss of the worst domain, of the plan of each step.
        best_step: the step, from 0, whose plan is the best; of equals the first.
    """

    keep_LE: Mask
    losses: tuple[float, ...]
    best_step: int


def allocate(
    score_LE: Array,
    *,
    worth_DLE: Array,
    budget: Budget,
    steps: int = 20,
    boost: float = 0.15,
    decay: str = "linear",
) -> Outcome:
    """Keep the experts of the best plan that Algorithm 1 meets.

    Args:
        score_LE: (L, E) float64: R, the pooled signal (router mass), rows normalised to 1.
        worth_DLE: (D, L, E) float64: D_d, each domain's signal, rows normalised to 1.
        budget: how many may leave where.
        steps: T, plans to look at.
        boost: η₀, how much of a domain's mass is added to the scores.
        decay: ``"linear"``, ``"cosine"`` or ``"constant"``.

    Returns:
        The plan; ``details`` say at which step it was met.

    Raises:
        UsageError: an option out of range.
    """
    found = trace(
        score_LE, worth_DLE=worth_DLE, budget=budget, steps=steps, boost=boost, decay=decay
    )
    return Outcome(found.keep_LE, {"best_step": found.best_step})


def trace(
    score_LE: Array,
    *,
    worth_DLE: Array,
    budget: Budget,
    steps: int = 20,
    boost: float = 0.15,
    decay: str = "linear",
) -> Trace:
    """Algorithm 1 with the loss of every step, see :func:`allocate`.

    Raises:
        UsageError: an option out of range.
    """
    if type(steps) is not int or steps < 1:
        raise UsageError(f"--steps {steps} is not a count; use 1 or more.")
    if not (math.isfinite(boost) and boost >= 0):
        raise UsageError(f"--boost {boost} must be a number from 0 up; the paper uses 0.15.")
    share = DECAYS[known(decay, DECAYS, kind="decay")]

    best_LE: Mask | None = None
    losses: list[float] = []
    best_step = 0
    scores_LE = score_LE
    for t in range(steps):
        keep_LE = keep_highest(scores_LE, budget)  # line 3
        loss_D = domain_loss(worth_DLE, keep_LE)  # line 4
        worst = int(np.argmax(loss_D))  # line 5; equal losses: the first domain
        losses.append(float(loss_D[worst]))
        if best_LE is None or losses[t] < losses[best_step]:  # lines 6-8
            best_step, best_LE = t, keep_LE
        eta = boost * share(t / (steps - 1) if steps > 1 else 0.0)  # line 9
        scores_LE = row_norm(scores_LE + eta * worth_DLE[worst])  # line 10
    assert best_LE is not None
    return Trace(best_LE, tuple(losses), best_step)  # line 12: the plan of S*
