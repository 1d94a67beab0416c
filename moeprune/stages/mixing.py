"""A scheme for every layer, and how many experts leave, such that the export fits a budget.

What is minimised is the sum, over all experts, of what an expert is worth times the relative error
of its weights as they will be stored; an expert that leaves has error 1. What the export takes is
asked of the export itself, which knows every file to the byte before it writes one.

L MoE layers, E experts of the widest layer.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np

from moeprune.core.choice import Mask, real_LE
from moeprune.core.plan import PrunePlan
from moeprune.core.quantisation import PLAIN, LayerSchemes
from moeprune.core.rounding import rounded, rounded_down
from moeprune.errors import UsageError
from moeprune.stages.candidates import Candidate, Choices, Choose
from moeprune.stages.mixed_words import MixedWords
from moeprune.stages.prepared import PreparedExport

_SMALL = "int4"
_EXACT = 1e-12  # relative: sums in another order differ by less
_RESERVE = 512  # bytes: another folder's name in the texts that tell where an export came from
_DIGITS = 64  # bytes: of a larger budget, where the plan names it
_ALIKE = 8192  # bytes: exports of one kind do not differ by more beside their experts
_ROUNDS = 8

Describe = Callable[[Mask, LayerSchemes], PrunePlan]
"""The plan that keeps these experts and stores them so."""
Prepare = Callable[[PrunePlan], PreparedExport]
"""The export of a plan, not written."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Mixer:
    """Finds the plan that fits.

    Attributes:
        words: what was asked for.
        choices: of the model's experts.
        criterion: by which experts are worth something.
        name: of the model.
        prepare: gives the export of a plan.
    """

    words: MixedWords
    choices: Choices
    criterion: str
    name: str
    prepare: Prepare

    def fit(
        self,
        ways_of: Callable[[Choices], Sequence[Choose]],
        describe: Describe,
        *,
        most_leave: Sequence[int],
    ) -> PrunePlan:
        """The best plan whose export takes no more than the budget.

        Args:
            ways_of: gives the best candidate of a room, of one kind each: exports of a kind take
                the same beside their experts, but for a few bytes.
            describe: the plan that keeps these experts and stores them so.
            most_leave: (L,) experts that some candidate removes at most.

        Raises:
            UsageError: no export is small enough, or nothing needs to be done.
        """
        ways = [*ways_of(self.choices)]
        for scheme in self.choices.weighed.group_sizes:  # one for all: such an export needs no code
            ways += ways_of(self.choices.only(scheme))
        fixed = self._first_guess(describe)
        best: PrunePlan | None = None
        for choose in ways:
            at_best = choose(self.words.budget - fixed)
            if at_best is None or (best is not None and at_best.loss >= _loss(best)):
                continue
            found = self._fit_one(choose, describe, fixed)
            if found is not None and (best is None or _loss(found) < _loss(best)):
                best = found
        if best is None:
            raise self._too_small(ways, describe, most_leave)
        assert best.quantize is not None
        if not best.quantize.used:
            raise self._fits(" with the experts that stay")
        return best

    def _fit_one(self, choose: Choose, describe: Describe, fixed: int) -> PrunePlan | None:
        budget = self.words.budget - _RESERVE
        best: PrunePlan | None = None
        seen: set[int] = set()
        while len(seen) < _ROUNDS or best is None:
            seen.add(fixed)
            found = choose(budget - fixed)
            if found is None:
                break
            if found.keep_LE.sum() == sum(self.choices.num_experts) and {*found.schemes} == {PLAIN}:
                raise self._fits("")
            plan = describe(found.keep_LE, self._schemes(found))
            prepared = self.prepare(plan)
            total = prepared.contents.total_bytes
            # What is no expert's depends a little on the choice: file headers, lists of kept ids.
            other = total - self.choices.taken(found)
            if total <= budget:
                told = _told(plan, total=total, tensors=prepared.size["bytes_after"])
                best = told if best is None or _loss(told) <= _loss(best) else best
                if other in seen or other > fixed or fixed - other > _ALIKE:
                    break
            fixed = other
        return best

    def _first_guess(self, describe: Describe) -> int:
        """What an export takes beside its experts, where all stay."""
        everything = real_LE(self.choices.num_experts)
        smallest = Candidate(everything, (_SMALL,) * len(everything), 1.0, 1.0)
        plan = describe(smallest.keep_LE, self._schemes(smallest))
        return self.prepare(plan).contents.total_bytes - self.choices.taken(smallest)

    def _schemes(self, found: Candidate) -> LayerSchemes:
        exact = found.bound >= found.loss * (1 - _EXACT)
        loss = rounded(found.loss)
        return LayerSchemes(
            schemes=found.schemes,
            group_sizes={
                scheme: size
                for scheme, size in self.choices.weighed.group_sizes.items()
                if scheme in found.schemes
            },
            details={
                "budget": self.words.budget,
                "bytes": self.words.budget,  # until it is known, a number as long as it can be
                "criterion": self.criterion,
                "worth": rounded(self.choices.total),
                "loss": loss,
                "bound": loss if exact else min(loss, rounded_down(found.bound)),
            },
        )

    def _fits(self, how: str) -> UsageError:
        return UsageError(
            f"{self.words.option} {self.words.budget}: {self.name} fits already{how}, with nothing "
            f"quantised. Use a smaller {self.words.option}, or leave --quantize out."
        )

    def _too_small(
        self, ways: Sequence[Choose], describe: Describe, most_leave: Sequence[int]
    ) -> UsageError:
        least_L = np.array(self.choices.num_experts) - np.array(most_leave)
        totals = []
        for choose in ways:
            smallest = choose(self.choices.least(least_L))
            if smallest is not None:
                plan = describe(smallest.keep_LE, self._schemes(smallest))
                totals.append(self.prepare(plan).contents.total_bytes)
        least = min(totals) + _RESERVE + _DIGITS
        more = "" if self.words.joint else ", or plan --max-bytes, so that experts may leave too"
        return UsageError(
            f"{self.words.option} {self.words.budget} cannot be met: the smallest that "
            f"{self.name} can become this way has {least} bytes. Use "
            f"{self.words.option} {least} or more{more}."
        )


def _told(plan: PrunePlan, *, total: int, tensors: int) -> PrunePlan:
    """The plan with what its export takes."""
    chosen = plan.quantize
    assert chosen is not None
    details = {**chosen.details, "bytes": total}
    size = {**plan.size, "bytes_after": tensors}
    return replace(plan, quantize=replace(chosen, details=details), size=size)


def _loss(plan: PrunePlan) -> float:
    assert plan.quantize is not None
    return float(plan.quantize.details["loss"])
