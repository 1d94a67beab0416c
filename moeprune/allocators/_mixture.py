"""The multiple-choice knapsack of :mod:`moeprune.core.mixture`, solved exactly.

As a program over binary variables z[l, x], one for each option x of each layer l:

    minimise    sum of loss[l, x] z[l, x]
    subject to  sum of nbytes[l, x] z[l, x] <= budget,   sum over x of z[l, x] = 1 for every l

Bytes are whole numbers from beginning to end, so that no tolerance of a solver can exceed the
budget. Dropping the budget for a price of a byte gives a bound that is found layer by layer
(the Lagrangian dual; its best price gives the linear relaxation's value). With the best price,
options that no better choice can take are dropped; what is left is decided layer after layer, where
of all beginnings only those stay that no other beginning beats in both loss and bytes, and whose
bound is below the best choice known (Dyer, Riha and Walker, *A hybrid dynamic
programming/branch-and-bound algorithm for the multiple-choice knapsack problem*, 1995).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moeprune.core.mixture import Mixed, Mixture
from moeprune.core.stats import Array

MOST_STATES = 400_000  # beginnings that are kept of a layer; more, and the bound says what is lost
_FEW_STATES = 2_000  # of the first look
_SLACK = 1e-12  # relative: sums in another order differ by less


@dataclass(frozen=True, slots=True)
class _Layer:
    """The options of a layer that no other beats: bytes ascend, losses fall."""

    ids: NDArray[np.int64]
    loss: Array
    nbytes: NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class _States:
    """Beginnings: choices of the first layers. Regret: how far the bound is above the least."""

    loss: Array
    nbytes: NDArray[np.int64]
    regret: Array


def solve(problem: Mixture, *, most_states: int = MOST_STATES) -> Mixed:
    """The choice that loses least within the budget.

    Args:
        problem: with ``least`` at most its budget.
        most_states: beginnings that are kept of a layer. Where more would be needed, the answer
            may not be the best; its bound holds all the same.
    """
    assert problem.least <= problem.budget
    layers = [_undominated(*pair) for pair in zip(problem.loss, problem.nbytes, strict=True)]
    price = _price(layers, problem.budget)
    best = _rounded(layers, price, problem.budget)
    left_out = np.inf
    # A quick look first: the better the choice that is known, the less has to be looked at.
    for states in sorted({min(_FEW_STATES, most_states), most_states}):
        better, left_out = _search(layers, price, problem.budget, _loss(layers, best), states)
        best = best if better is None else better
        if left_out >= _loss(layers, best):
            break
    choice = tuple(int(layer.ids[x]) for layer, x in zip(layers, best, strict=True))
    loss = problem.loss_of(choice)
    proven = max(_dual(layers, price, problem.budget) * (1 - _SLACK), left_out)
    return Mixed(
        choice=choice, loss=loss, nbytes=problem.bytes_of(choice), bound=max(0.0, min(loss, proven))
    )


def _undominated(loss_X: Array, nbytes_X: NDArray[np.int64]) -> _Layer:
    ids = _front(loss_X, nbytes_X)
    return _Layer(ids, loss_X[ids], nbytes_X[ids])


def _loss(layers: list[_Layer], choice: list[int]) -> float:
    return sum((float(layer.loss[x]) for layer, x in zip(layers, choice, strict=True)), 0.0)


def _bytes(layers: list[_Layer], choice: list[int]) -> int:
    return sum(int(layer.nbytes[x]) for layer, x in zip(layers, choice, strict=True))


def _cheapest(layers: list[_Layer], price: float) -> list[int]:
    """The best option of each layer at a price of a byte; of equal ones the smallest."""
    return [int(np.argmin(layer.loss + price * layer.nbytes)) for layer in layers]


def _dual(layers: list[_Layer], price: float, budget: int) -> float:
    """No choice within the budget loses less, at any price that is not negative."""
    reduced = (float(np.min(layer.loss + price * layer.nbytes)) for layer in layers)
    return sum(reduced, 0.0) - price * budget


def _price(layers: list[_Layer], budget: int) -> float:
    """The price of a byte at which the dual is highest: where the budget is just met.

    The bytes taken fall as the price rises, in steps at the slopes of the layers' lower hulls.
    """
    steps: list[tuple[float, int]] = []
    over = -budget
    for layer in layers:
        over += int(layer.nbytes[-1])
        at = layer.loss.size - 1
        while at:  # along the lower hull, towards fewer bytes, the flattest step first
            slopes = (layer.loss[:at] - layer.loss[at]) / (layer.nbytes[at] - layer.nbytes[:at])
            next_at = int(np.argmin(slopes))
            steps.append((float(slopes[next_at]), int(layer.nbytes[at] - layer.nbytes[next_at])))
            at = next_at
    if over <= 0:
        return 0.0
    for slope, freed in sorted(steps):
        over -= freed
        if over <= 0:
            return slope
    return max((slope for slope, _ in steps), default=0.0)


def _rounded(layers: list[_Layer], price: float, budget: int) -> list[int]:
    """A good choice within the budget: the dual's, cut to fit, and then what still has room."""
    choice = _cheapest(layers, price)
    over = _bytes(layers, choice) - budget
    while over > 0:  # the step down that costs least a byte it frees
        _, row = min(
            (
                (layer.loss[x - 1] - layer.loss[x]) / (layer.nbytes[x] - layer.nbytes[x - 1]),
                row,
            )
            for row, (layer, x) in enumerate(zip(layers, choice, strict=True))
            if x
        )
        over -= int(layers[row].nbytes[choice[row]] - layers[row].nbytes[choice[row] - 1])
        choice[row] -= 1
    while True:  # the step up that gains most
        gains = []
        for row, (layer, x) in enumerate(zip(layers, choice, strict=True)):
            fits = int(np.searchsorted(layer.nbytes, layer.nbytes[x] - over, side="right")) - 1
            if fits > x:
                gains.append((float(layer.loss[x] - layer.loss[fits]), -row, fits))
        if not gains:
            return choice
        _, negative, fits = max(gains)
        row = -negative
        over += int(layers[row].nbytes[fits] - layers[row].nbytes[choice[row]])
        choice[row] = fits


def _search(
    layers: list[_Layer], price: float, budget: int, known: float, most_states: int
) -> tuple[list[int] | None, float]:
    """The best choice that loses less than a known one, layer after layer.

    Returns:
        The choice, or None where there is none; and the least bound of the beginnings that were
        left out for want of room, infinity if none was.
    """
    priced = [layer.loss + price * layer.nbytes for layer in layers]
    base = sum((float(each.min()) for each in priced), 0.0) - price * budget
    # What the bound of a choice may be above the least one; the sums cancel, hence the slack.
    most_regret = known - base + _SLACK * (known + price * budget)
    least = np.array([int(layer.nbytes[0]) for layer in layers])
    after_L = np.append(np.cumsum(least[::-1])[::-1][1:], 0)  # the least of all later layers
    state = _States(np.zeros(1), np.zeros(1, dtype=np.int64), np.zeros(1))
    came: list[tuple[NDArray[np.int64], NDArray[np.int64]]] = []
    left_out = np.inf
    for layer, priced_X, after in zip(layers, priced, after_L, strict=True):
        regret_X = priced_X - priced_X.min()
        grown = []
        for x in np.flatnonzero(regret_X <= most_regret):
            nbytes_S = state.nbytes + layer.nbytes[x]
            regret_S = state.regret + regret_X[x]
            good = np.flatnonzero((nbytes_S + after <= budget) & (regret_S <= most_regret))
            grown.append(
                (
                    state.loss[good] + layer.loss[x],
                    nbytes_S[good],
                    regret_S[good],
                    good,
                    np.full(good.size, x),
                )
            )
        loss_S, nbytes_S, regret_S, origin_S, option_S = (
            np.concatenate(parts) for parts in zip(*grown, strict=True)
        )
        stay = _front(loss_S, nbytes_S)
        if stay.size > most_states:
            nearest = np.argsort(regret_S[stay], kind="stable")
            left_out = min(left_out, base + float(regret_S[stay[nearest[most_states]]]))
            stay = stay[np.sort(nearest[:most_states])]
        if not stay.size:
            return None, left_out
        state = _States(loss_S[stay], nbytes_S[stay], regret_S[stay])
        came.append((origin_S[stay], option_S[stay]))
    at = int(np.argmin(state.loss))
    if state.loss[at] >= known * (1 - _SLACK):
        return None, left_out
    choice = []
    for origin_S, option_S in reversed(came):
        choice.append(int(option_S[at]))
        at = int(origin_S[at])
    return choice[::-1], left_out


def _front(loss_S: Array, nbytes_S: NDArray[np.int64]) -> NDArray[np.int64]:
    """Those that no other beats in both: bytes ascend, losses fall."""
    order = np.lexsort((loss_S, nbytes_S))
    lowest_S = np.minimum.accumulate(loss_S[order])
    return np.asarray(order[np.append(True, loss_S[order][1:] < lowest_S[:-1])[: order.size]])
