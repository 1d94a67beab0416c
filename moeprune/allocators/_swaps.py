"""Make a plan better by exchanging one or two experts for others, until no exchange helps.

An exchange lets a removed expert return and another one leave: within a block (a router group of a
layer), or between layers where experts leave one by one. Tried are the exchanges that cost least by
the weights of the linear relaxation, and all pairs of the cheapest ones.

D domains, N experts, B blocks, S experts of the largest block, M exchanges.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from moeprune.allocators._problem import Ids, Problem
from moeprune.core.choice import Mask
from moeprune.core.stats import Array

_ROUNDS = 80
_TRIED = 4000  # exchanges looked at in a round
_PAIRED = 450  # of which the cheapest are tried two at a time
_LEAST = 1e-12  # relative: an improvement below this is rounding


@dataclass(frozen=True, slots=True)
class _Swaps:
    """M exchanges: who returns, who leaves, and what that adds to every domain's loss."""

    back: Ids
    away: Ids
    change_MD: Array

    def best(self, count: int, cost_N: Array) -> _Swaps:
        """The ``count`` cheapest."""
        price = cost_N[self.away] - cost_N[self.back]
        some = np.sort(np.argsort(price, kind="stable")[:count])
        return _Swaps(self.back[some], self.away[some], self.change_MD[some])


def improve(
    problem: Problem, leave_N: Mask, weight_D: Array, *, limit: float = 0.0, enough: float = 0.0
) -> Mask:
    """Lower the worst domain's loss down to a limit, then the mean loss.

    Args:
        problem: what may leave.
        leave_N: (N,) bool, a plan of the problem.
        weight_D: (D,) weights of the domains that make cheap exchanges worth trying.
        limit: a worst loss below which only the mean loss counts.
        enough: a worst loss at which to stop.

    Returns:
        (N,) bool: a plan that is not worse, and better where an exchange helps.
    """
    leave_N = leave_N.copy()
    cost_N = problem.cost_N(weight_D)
    for _ in range(_ROUNDS):
        loss_D = problem.loss_D(leave_N)
        if loss_D.max() <= enough:
            break
        swaps = _swaps(problem, leave_N, cost_N)
        if not swaps.back.size:
            break
        found = [_pick(loss_D + swaps.change_MD, limit)]
        few = swaps.best(_PAIRED, cost_N)
        one, two = _pairs(problem, leave_N, few)
        if one.size:
            found.append(_pick(loss_D + few.change_MD[one] + few.change_MD[two], limit))
        now = (max(float(loss_D.max()), limit), float(loss_D.mean()))
        which = min(range(len(found)), key=lambda index: found[index][:2])
        worst, mean, index = found[which]
        least = _LEAST * now[0]
        if not (worst < now[0] - least or (worst <= now[0] and mean < now[1] - least)):
            break
        back = [swaps.back[index]] if which == 0 else [few.back[one[index]], few.back[two[index]]]
        away = [swaps.away[index]] if which == 0 else [few.away[one[index]], few.away[two[index]]]
        leave_N[back] = False
        leave_N[away] = True
    return leave_N


def _pick(loss_MD: Array, limit: float) -> tuple[float, float, int]:
    """The least worst loss above the limit, then the least mean; which one."""
    worst_M = np.maximum(loss_MD.max(axis=1), limit)
    least = float(worst_M.min())
    ties = np.flatnonzero(worst_M == least)
    mean_M = loss_MD[ties].mean(axis=1)
    first = int(np.argmin(mean_M))
    return least, float(mean_M[first]), int(ties[first])


def _swaps(problem: Problem, leave_N: Mask, cost_N: Array) -> _Swaps:
    index_BS = problem.index_BS.reshape(1, -1) if problem.single else problem.index_BS
    gone_BS = np.append(leave_N, False)[index_BS]
    cost_BS = cost_N[index_BS]
    each = max(3, int((_TRIED / len(index_BS)) ** 0.5))
    dear = np.argsort(np.where(gone_BS, -cost_BS, np.inf), axis=1, kind="stable")[:, :each]
    cheap = np.argsort(np.where(gone_BS, np.inf, cost_BS), axis=1, kind="stable")[:, :each]
    ok_BXY = (
        np.take_along_axis(gone_BS, dear, 1)[:, :, None]
        & ~np.take_along_axis(gone_BS, cheap, 1)[:, None, :]
        & np.isfinite(np.take_along_axis(cost_BS, cheap, 1))[:, None, :]
    )
    back_BXY = np.take_along_axis(index_BS, dear, 1)[:, :, None]
    away_BXY = np.take_along_axis(index_BS, cheap, 1)[:, None, :]
    if problem.single:
        width = problem.shape[1]
        room_L = problem.max_slices_L - leave_N.reshape(problem.shape).sum(axis=1)
        same = back_BXY // width == away_BXY // width
        moves = ~np.append(problem.fixed_L, True)[back_BXY // width]
        ok_BXY &= same | (moves & (np.append(room_L, 0)[away_BXY // width] > 0))
    back = np.broadcast_to(back_BXY, ok_BXY.shape)[ok_BXY]
    away = np.broadcast_to(away_BXY, ok_BXY.shape)[ok_BXY]
    return _Swaps(back, away, problem.loss_ND[away] - problem.loss_ND[back])


def _pairs(problem: Problem, leave_N: Mask, few: _Swaps) -> tuple[Ids, Ids]:
    """Every two exchanges that can be made together."""
    one, two = np.triu_indices(few.back.size, 1)
    apart = (few.back[one] != few.back[two]) & (few.away[one] != few.away[two])
    if problem.single:
        layer = few.away // problem.shape[1]
        room_L = problem.max_slices_L - leave_N.reshape(problem.shape).sum(axis=1)
        apart &= (layer[one] != layer[two]) | (room_L[layer[one]] > 1)
    return one[apart], two[apart]
