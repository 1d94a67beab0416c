"""The removal whose worst domain loses least, and of those the least mean: with its proof.

Cutting planes give the bound of the linear relaxation and good plans on the way; exchanges of one
and two experts improve these and those that are given; where that does not reach the gap, what no
better plan can change is fixed and HiGHS decides the rest as a mixed-integer program. Of all plans
that are good enough by the worst loss, one of the least mean loss is taken.

D domains, N experts.
"""

from __future__ import annotations

import math
import time
from collections.abc import Sequence

from moeprune.allocators._bound import search
from moeprune.allocators._core import core_of
from moeprune.allocators._mean import least_mean
from moeprune.allocators._problem import Problem
from moeprune.allocators._program import solve
from moeprune.allocators._swaps import improve
from moeprune.core.choice import Mask, Outcome
from moeprune.core.rounding import rounded, rounded_down
from moeprune.errors import UsageError

OPTIONS = ("gap", "time_limit")
# How the plans of halves of the text are made, to see how stable a plan is: without the solver.
QUICK = {"time_limit": 0.0}

_STARTS = 3
_ROUNDING = 1e-12  # relative
_MEAN_NODES = 1000  # of the search tree: the second objective is not worth a minute
_SOLVER_SHARE = 0.9  # of the gap: the rest is for the solver's tolerances
_DIGITS = 12  # of numbers in a plan: the last bits of a sum depend on the machine


def check_options(*, gap: float, time_limit: float) -> None:
    """Check what says how near to the optimum, and how long.

    Raises:
        UsageError: out of range.
    """
    if not 0 <= gap < 1:  # also refuses NaN
        raise UsageError(f"--gap {gap} is not a share; use 0 to 1, e.g. 1e-4.")
    if not (math.isfinite(time_limit) and time_limit >= 0):
        raise UsageError(f"--time-limit {time_limit} must be a number of seconds from 0 up.")


def least_worst(
    problem: Problem, starts: Sequence[Mask], *, gap: float, time_limit: float, begun: float
) -> Outcome:
    """The plan whose worst domain loses least.

    Args:
        problem: what may leave.
        starts: plans of the problem, (N,) bool each; the answer is no worse.
        gap: relative distance to the optimum that is good enough.
        time_limit: seconds after which the best plan so far is taken; 0 = no solver.
        begun: when these began to count, by ``time.monotonic``.

    Returns:
        The plan. Details: ``worst_loss``, a proven lower ``bound`` of any plan's, and the relative
        ``gap`` between them; ``mean_loss``, ``mean_bound`` and ``mean_gap``, the same for the mean
        over domains among the plans whose worst loss is as low as this one's; and
        ``time_limit_hit``: if so, another machine may find another plan.
    """
    made = _Search(problem, starts, gap=gap, end=begun + time_limit if time_limit else None)
    made.lower_the_worst()
    made.lower_the_mean()
    return Outcome(problem.keep_LE(made.leave_N), made.details())


class _Search:
    """The best plan so far and what is proven of it."""

    def __init__(
        self, problem: Problem, known: Sequence[Mask], *, gap: float, end: float | None
    ) -> None:
        bound = search(problem)
        self.problem = problem
        self.weight_D = bound.weight_D
        self.bound = rounded_down(bound.value)
        self.gap = gap
        self.end = end
        self.mean_bound = 0.0
        self.hit = False
        own = [(float(problem.loss_D(leave_N).max()), leave_N) for leave_N in known]
        starts = [*bound.plans, *own]
        starts.sort(key=lambda plan: plan[0])
        self.leave_N = starts[0][1]
        for _, leave_N in starts[:_STARTS]:
            if self.worst > self.enough:
                self._offer(improve(problem, leave_N, self.weight_D, enough=self.enough))

    @property
    def enough(self) -> float:
        """A worst loss within the gap."""
        return self.bound / (1 - self.gap)

    @property
    def worst(self) -> float:
        """What the worst domain loses."""
        return float(self.problem.loss_D(self.leave_N).max())

    @property
    def mean(self) -> float:
        """What the domains lose on average."""
        return float(self.problem.loss_D(self.leave_N).mean())

    def lower_the_worst(self) -> None:
        """The first objective: the worst domain's loss, until the gap is reached."""
        if self.worst > self.enough:
            proven = self._solve(worst=True, limit=self.worst)
            self.bound = max(self.bound, min(rounded_down(proven), self.worst))

    def lower_the_mean(self) -> None:
        """The second: the mean loss, of the plans whose worst loss is as low."""
        limit = self.worst * (1 + _ROUNDING)  # equal sums may differ in a last bit
        self._offer(improve(self.problem, self.leave_N, self.weight_D, limit=limit), limit=limit)
        goal = self.mean * (1 - self.gap)
        low, weight_D, plan_N = least_mean(self.problem, self.weight_D, limit=limit, goal=goal)
        if low < goal:
            for start_N in (self.leave_N, *(() if plan_N is None else (plan_N,))):
                better_N = improve(self.problem, start_N, weight_D, limit=limit)
                self._offer(better_N, limit=limit)
        if low < self.mean * (1 - self.gap):
            low = max(low, self._solve(worst=False, limit=limit))
        self.mean_bound = min(rounded_down(low), self.mean)

    def _offer(self, leave_N: Mask, *, limit: float = 0.0) -> None:
        """Take a plan if it is better: a lower worst loss, above the limit, then a lower mean."""

        def key(plan_N: Mask) -> tuple[float, float]:
            loss_D = self.problem.loss_D(plan_N)
            return max(float(loss_D.max()), limit), float(loss_D.mean())

        if key(leave_N) < key(self.leave_N):
            self.leave_N = leave_N

    def _solve(self, *, worst: bool, limit: float) -> float:
        """Let the solver decide what is open; returns the bound of its objective."""
        core = core_of(self.problem, self.weight_D, limit=limit)
        if not core.free_N.any():
            return limit if worst else self.mean
        if self.end is None:
            return 0.0
        seconds = self.end - time.monotonic()
        if seconds <= 0:
            self.hit = True
            return 0.0
        solved = solve(
            self.problem,
            core,
            worst=worst,
            low=self.bound,
            high=limit,
            gap=self.gap * _SOLVER_SHARE,
            seconds=seconds,
            nodes=None if worst else _MEAN_NODES,
        )
        self.hit |= solved.timed_out
        if solved.leave_N is not None and int(solved.leave_N.sum()) == self.problem.total:
            self._offer(solved.leave_N, limit=0.0 if worst else limit)
        return solved.bound

    def details(self) -> dict[str, object]:
        """What is proven of the plan."""
        return {
            "worst_loss": rounded(self.worst),
            "bound": self.bound,
            "gap": _gap(self.bound, self.worst),
            "mean_loss": rounded(self.mean),
            "mean_bound": self.mean_bound,
            "mean_gap": _gap(self.mean_bound, self.mean),
            "time_limit_hit": self.hit,
        }


def _gap(bound: float, value: float) -> float:
    return round(max(0.0, 1 - bound / value), _DIGITS) if value > 0 else 0.0
