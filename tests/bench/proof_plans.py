"""The plans that proof_loss_aware.py judges, and what is predicted of them.

D domains, L MoE layers, E experts of a layer.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

import moeprune
from moeprune.allocators import mesa_exact
from moeprune.core.budget import Budget
from moeprune.core.choice import keep_highest
from moeprune.core.losses import TEMPERATURE
from moeprune.core.stats import CalibrationStats

PAPERS = ("rm-uniform", "reap", "mesa", "mesa-exact", "domain-reap")
SECONDS = 10.0  # of the solver, for a plan

Array = NDArray[Any]
Named = tuple[str, Array]  # a method, and the experts that stay (L, E)


def planned(stats: CalibrationStats, ratio: float, allocation: str) -> Iterator[Named]:
    """The plans of all methods."""
    for name in (*PAPERS, "best"):
        words: dict[str, Any] = {"ratio": ratio, "allocation": allocation}
        if name in ("mesa-exact", "best"):
            words["time_limit"] = SECONDS
        yield name, moeprune.plan(stats, method=name, **words).keep_mask_LE()


def other_ways(stats: CalibrationStats, plain: CalibrationStats, ratio: float) -> Iterator[Named]:
    """What `best` leaves out, or does otherwise, with counts that differ per layer.

    Args:
        stats: what `best` reads.
        plain: the same with the loss at temperature 1.
        ratio: share of the experts that leave.
    """
    budget = Budget.of(stats.model, ratio=ratio, keep=None, allocation="global")

    def field(name: str) -> Array:
        return np.stack([domain.total(name) for domain in stats.domains])

    def minimax(worth_DLE: Array) -> Array:
        score_LE = worth_DLE.sum(axis=0) / worth_DLE.sum()
        found = mesa_exact.allocate(
            score_LE, worth_DLE=worth_DLE, budget=budget, time_limit=SECONDS
        )
        return found.keep_LE

    fisher_cf = field("fisher_cf_sum")
    share = fisher_cf / fisher_cf.sum(axis=(1, 2), keepdims=True)
    nats = fisher_cf / field("loss_tokens")[:, None, None]
    yield (
        "T = 1",
        moeprune.plan(
            plain, method="best", ratio=ratio, allocation="global", time_limit=SECONDS
        ).keep_mask_LE(),
    )
    yield "fisher, not fisher-cf", minimax(field("fisher_sum"))
    yield "abs-cf, not fisher-cf", minimax(field("abs_cf_sum"))
    yield "squares of documents' sums, not of tokens'", minimax(field("cf_change_sq_sum"))
    yield "√ of fisher-cf", minimax(np.sqrt(fisher_cf))
    yield "least mean share, no minimax", keep_highest(share.mean(axis=0), budget)
    yield "least mean in nats, no shares", keep_highest(nats.mean(axis=0), budget)
    yield (
        "fisher-cf, layers weigh the same",
        minimax(fisher_cf / fisher_cf.sum(axis=2, keepdims=True)),
    )


def predicted(stats: CalibrationStats, keep_LE: Array) -> dict[str, float]:
    """Domain -> nats per target token that the experts' counterfactual Fisher foretells."""
    return {
        domain.name: float(
            0.5
            * TEMPERATURE**2
            * domain.total("fisher_cf_sum")[~keep_LE].sum()
            / domain.total("loss_tokens")
        )
        for domain in stats.domains
    }
