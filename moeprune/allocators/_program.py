"""The undecided experts as a mixed-integer program, solved by HiGHS.

A binary variable for every undecided expert; where layers compete in chunks or groups, also one
for how many chunks each layer loses. Losses are counted in what an expert that leaves costs on
average, so that the solver's tolerances (1e-6) are a millionth of one.

D domains, N experts, X undecided experts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from moeprune.allocators._core import Core
from moeprune.allocators._problem import Problem
from moeprune.allocators._rules import rules_of
from moeprune.core.choice import Mask

_TOLERANCE = 1e-5  # of an expert that leaves: what the solver's bound may be wrong by


@dataclass(frozen=True, slots=True)
class Solved:
    """What the solver found.

    Attributes:
        leave_N: (N,) bool, the best plan; None if it found none.
        bound: no plan has a lower objective.
        timed_out: whether it would have gone on but for the time.
    """

    leave_N: Mask | None
    bound: float
    timed_out: bool


def solve(
    problem: Problem,
    core: Core,
    *,
    worst: bool,
    low: float,
    high: float,
    gap: float,
    seconds: float,
    nodes: int | None = None,
) -> Solved:
    """Decide the core.

    Args:
        problem: what may leave.
        core: what is decided already, for a worst loss of at most ``high``.
        worst: minimise the worst domain's loss; else the mean over domains.
        low: a lower bound of the worst loss.
        high: the worst loss may not be more.
        gap: relative distance to the optimum at which the solver may stop.
        seconds: how long it may take.
        nodes: how many nodes of the search tree it may look at, on any machine; None = all.
    """
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import csr_array, hstack

    ids = np.flatnonzero(core.free_N)
    domains = problem.loss_ND.shape[1]
    scale = problem.total / high if high > 0 else 1.0
    loss_XD = problem.loss_ND[ids] * scale
    base_D = problem.loss_D(core.leave_N) * scale
    rules = rules_of(problem, core, ids)
    extra = len(rules.most)
    size = ids.size + extra + 1  # the last variable is the worst loss, or 1
    limits = hstack(
        [csr_array(loss_XD.T), csr_array((domains, extra)), csr_array(np.full((domains, 1), -1.0))]
        if worst
        else [csr_array(loss_XD.T), csr_array((domains, extra + 1))]
    )
    objective = np.zeros(size)
    if worst:
        objective[-1] = 1.0
        ends = (low * scale, high * scale)
        room_D = -base_D
    else:
        objective[: ids.size] = loss_XD.mean(axis=1)
        objective[-1] = base_D.mean()
        ends = (1.0, 1.0)
        room_D = high * scale - base_D
    with _silent():
        found = milp(
            objective,
            integrality=np.append(np.ones(size - 1), 0),
            bounds=Bounds(
                np.append(np.zeros(size - 1), ends[0]),
                np.concatenate([np.ones(ids.size), rules.most, [ends[1]]]),
            ),
            constraints=[
                LinearConstraint(limits, -np.inf, room_D),
                LinearConstraint(rules.matrix(size), rules.low, rules.high),
            ],
            options={"time_limit": seconds, "mip_rel_gap": gap}
            | ({} if nodes is None else {"node_limit": nodes}),
        )
    leave_N = None
    if found.x is not None:
        leave_N = core.leave_N.copy()
        leave_N[ids[found.x[: ids.size] > 0.5]] = True
    if found.status == 2:  # infeasible: no plan is better than the limit
        return Solved(None, high - _TOLERANCE / scale, False)
    proven = found.mip_dual_bound
    known = proven is not None and np.isfinite(proven)
    bound = (float(proven) - _TOLERANCE) / scale if known else 0.0
    stopped = found.status == 1 and (nodes is None or (found.mip_node_count or 0) < nodes)
    return Solved(leave_N, bound, stopped)


@contextmanager
def _silent() -> Iterator[None]:
    """Keep what the solver prints by itself out of our standard output, which is the result."""
    sys.stdout.flush()
    try:
        saved = os.dup(1)
    except OSError:  # there is none
        yield
        return
    nowhere = os.open(os.devnull, os.O_WRONLY)
    try:
        os.dup2(nowhere, 1)
        yield
    finally:
        os.dup2(saved, 1)
        os.close(saved)
        os.close(nowhere)
