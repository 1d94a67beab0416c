"""``plan --method evoesap``: how many experts leave each layer, searched, judged by the model."""

from __future__ import annotations

import operator
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from moeprune.allocators import evoesap
from moeprune.artefact import check_writable
from moeprune.core.budget import Budget
from moeprune.core.choice import Outcome, keep_counts, leaving_orders
from moeprune.core.constraints import Constraints
from moeprune.core.fitness import Counts
from moeprune.core.progress import OnProgress
from moeprune.core.room import Room
from moeprune.core.stats import CalibrationStats
from moeprune.core.targets import check_own_counts
from moeprune.errors import UsageError
from moeprune.stages.choosing import Chooser
from moeprune.stages.forms import check_uneven
from moeprune.stages.judge import Judged, esap_of, judged

_DIGITS = 12  # of fitnesses in a plan: the last bits of a sum depend on the machine


@dataclass(frozen=True, slots=True, kw_only=True)
class Searched:
    """What a search found.

    Attributes:
        chooser: the method; its scores say in which order experts leave.
        outcome: the plan, and details of the search.
        counts: (L,) experts that leave each layer.
        budget: what it searched in.
        options: what decided it, for the plan's ``options``.
        warnings: one line each, for people.
        journal: what it saved; to be removed when the plan is written.
    """

    chooser: Chooser
    outcome: Outcome
    counts: Counts
    budget: Budget
    options: Mapping[str, Any] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    journal: evoesap.Journal | None = None

    def __call__(self, budget: Budget, folds: Sequence[int] | None) -> Outcome:
        """The plan; or with the same numbers, the one of the order that some folds give."""
        if folds is None:
            return self.outcome
        orders = leaving_orders(self.chooser.scored(folds), budget)
        return Outcome(keep_counts(orders, self.counts))

    def finish(self) -> None:
        """The plan is written: nothing is left to go on from."""
        if self.journal is not None:
            self.journal.remove()


def search_file(output: Path) -> Path:
    """Where the search for a plan saves every generation."""
    return output.with_name(output.name.removesuffix(".json") + ".search.json")


def search(
    stats: CalibrationStats,
    chooser: Chooser,
    *,
    uniform: Budget,
    multiple_of: int,
    constraints: Constraints,
    words: Mapping[str, Any],
    fits_bytes: bool,
    target: str | None,
    output: Path | None,
    on_progress: OnProgress,
) -> Searched:
    """Search for the numbers of experts that leave each layer, as many in all as ``uniform`` says.

    Args:
        stats: of the model.
        chooser: the method.
        uniform: where the search starts.
        multiple_of: kept counts must be a multiple of this.
        constraints: what stays whatever the scores say.
        words: see :class:`moeprune.stages.search_words.SearchWords`; only what was asked for.
        fits_bytes: whether ``uniform`` is the largest of some number of bytes.
        target: the runtime that must load the result, or None.
        output: the plan's file, beside which the state is saved; or None.
        on_progress: told of the full model's pass and of each plan.

    Raises:
        MoePruneError: the model, the text, an option or a saved state does not serve.
    """
    model = stats.model
    if model.sets:
        raise UsageError(
            f"--method evoesap does not go with {model.name}: the expert sets of a layer share one "
            "count. Use another method."
        )
    room = Room.of(model, constraints, multiple_of=multiple_of)
    if fits_bytes and len({model.expert_bytes[row] for row in room.free}) > 1:
        raise UsageError(
            f"--max-bytes does not go with --method evoesap here: experts of {model.name} are not "
            "of one size in all layers, so the size depends on the plan. Use --ratio."
        )
    score_LE, numbers = chooser.scored(None), chooser.allocating
    budget, start = uniform.evolved(room), uniform.max_remove
    how = {**numbers, "worth_DLE": score_LE[None], "budget": budget, "start": start}
    unsearched = evoesap.allocate(score_LE, **how)  # also checks the numbers
    if not numbers["generations"]:
        return Searched(chooser=chooser, outcome=unsearched, counts=start, budget=budget)
    uneven = sum(map(operator.lt, budget.min_remove, budget.max_remove)) > 1
    if uneven:
        check_own_counts(target, model)
    found = judged(stats, words, seed=numbers["seed"])
    if uneven:
        check_uneven(found.opened.index, found.opened.layout, name=model.name)
    file = words.get("state", None if output is None else search_file(output))
    journal = None
    if file is not None:
        check_writable(Path(file))
        rest = {name: value for name, value in numbers.items() if name != "generations"}
        orders = leaving_orders(score_LE, budget)
        print_of = found.fingerprint(orders, budget, start=start, numbers=rest)
        journal = evoesap.Journal(Path(file), print_of)
    judge = _Judge(found, words, budget, on_progress)
    outcome = evoesap.allocate(
        score_LE, evaluate=judge, journal=journal, on_progress=on_progress, **how
    )
    leave_L = np.array(budget.num_experts) - outcome.keep_LE.sum(axis=1)
    counts = tuple(int(leave) for leave in leave_L)
    more = {"domains": judge.by_domain(start, counts), "text": found.text}
    return Searched(
        chooser=chooser,
        outcome=replace(outcome, details={"search": {**outcome.details["search"], **more}}),
        counts=counts,
        budget=budget,
        options=found.options,
        warnings=found.warnings,
        journal=journal,
    )


class _Judge:
    """Makes the evaluator when the search asks for it, and keeps it for a last question."""

    def __init__(
        self, found: Judged, words: Mapping[str, Any], budget: Budget, on_progress: OnProgress
    ) -> None:
        self._make = esap_of(found, words, budget=budget, on_progress=on_progress)
        self._esap: Any = None

    def __call__(self, orders: Any) -> Any:
        self._esap = self._make(orders)
        return self._esap

    def by_domain(self, start: Counts, best: Counts) -> dict[str, dict[str, float]]:
        """ESAP of each domain, of the uniform plan and of the one that was found."""
        found = {"uniform": self._esap.by_domain(start), "best": self._esap.by_domain(best)}
        return {
            name: {which: round(values[name], _DIGITS) for which, values in found.items()}
            for name in self._esap.report.tokens
        }
