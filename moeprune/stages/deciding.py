"""The ways to a plan: experts leave, layers get schemes, or both are decided together."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.core.budget import Budget, room_for
from moeprune.core.constraints import Constraints
from moeprune.core.fitting import budget_for
from moeprune.core.methods import AUTO, BY_TARGET, EVOLVED, Method
from moeprune.core.methods import method as find_method
from moeprune.core.plan import PrunePlan
from moeprune.core.progress import OnProgress
from moeprune.core.quantisation import MIXED
from moeprune.core.targets import allocation_for
from moeprune.stages.auto import Decision, decide
from moeprune.stages.choosing import Chooser
from moeprune.stages.joint import Joint, check_joint
from moeprune.stages.mixed_words import MixedWords, by_itself
from moeprune.stages.planner import Pick, Planner
from moeprune.stages.search import search

if TYPE_CHECKING:
    from moeprune.stages.mixed import Measured
    from moeprune.stages.mixing import Mixer


@dataclass(frozen=True, slots=True, kw_only=True)
class Deciding:
    """What was asked for, checked.

    Attributes:
        planner: makes a plan of a choice.
        method: its name; of schemes alone: ``"mixed"``.
        chosen: its parts.
        given: options of criteria and allocators.
        allocation: how counts of layers are found; None: as the method does.
        ratio, keep, max_bytes: how many experts leave.
        multiple_of: of kept counts.
        constraints: what stays whatever the scores say.
        words: of a search.
        output: where the plan will lie, or None.
        on_progress: told how a search or the comparison of schemes goes on.
    """

    planner: Planner
    method: str
    chosen: Method
    given: Mapping[str, Any]
    allocation: str | None
    ratio: float | None
    keep: int | None
    max_bytes: int | None
    multiple_of: int
    constraints: Constraints
    words: dict[str, Any]
    output: Path | None
    on_progress: OnProgress

    def pruned(self) -> tuple[PrunePlan, Callable[[], None]]:
        """Experts leave: the plan, and what is to be done once it is saved."""
        method, chosen = self.method, self.chosen
        choose = self._chooser(method, chosen)
        budget = self._fitted(chosen, choose)
        pick: Pick = choose
        decision = None
        if method == AUTO:
            decision = self._decided(budget)
            method, chosen = decision.method, find_method(decision.method)
            pick = choose = self._chooser(method, chosen)
            budget = self._fitted(chosen, choose)
        planner, searched = self.planner, None
        if chosen.allocation == EVOLVED:
            pick = searched = search(
                planner.stats,
                choose,
                uniform=budget,
                multiple_of=self.multiple_of,
                constraints=self.constraints,
                words=self.words,
                fits_bytes=self.max_bytes is not None,
                target=planner.target,
                output=self.output,
                on_progress=self.on_progress,
            )
            budget = searched.budget
            planner = replace(planner, options={**planner.options, **searched.options})
        allocation, because = self._allocation(chosen)
        made = planner.plan(
            pick(budget, None),
            method=method,
            chosen=chosen,
            choose=choose,
            allocation=allocation,
            budget=budget,
            pick=pick,
            warnings=searched.warnings if searched else (),
        )
        made = replace(made, reasons=because)
        made = decision.explain(made) if decision else made
        return made, searched.finish if searched else lambda: None

    def stored(self, mixed: MixedWords) -> tuple[PrunePlan, Callable[[], None]]:
        """Experts leave as without schemes, and the others are stored within the budget."""
        from moeprune.stages.mixed import with_schemes

        made, finish = self.pruned()
        stats, weights = self.planner.stats, self.planner.domain_weights
        choose = Chooser(stats, MIXED, by_itself(None), given={}, domain_weights=weights)
        return with_schemes(made, self._mixer(mixed, choose)), finish

    def alone(self, mixed: MixedWords) -> PrunePlan:
        """All experts stay, and are stored within the budget."""
        from moeprune.stages.mixed import schemes_alone

        choose = self._chooser(self.method, self.chosen)
        mixer = self._mixer(mixed, choose)
        return schemes_alone(self.planner, choose, self.chosen, mixer)

    def joint(self, mixed: MixedWords) -> PrunePlan:
        """How many experts leave and how the others are stored is decided together."""
        measured = self._measured(mixed)
        if self.method != AUTO:
            return self._joint(mixed, measured, self.method, self.chosen)
        # What speaks for mesa and what for reap is asked at the size that mesa comes to.
        first = self._joint(mixed, measured, "mesa", find_method("mesa"))
        if not first.num_removed:
            return first
        budget = self._room().budget(first.keep_mask_LE())
        assert budget is not None
        # Best cannot be asked for every number of experts.
        decision = self._decided(budget, without_best=True)
        chosen = find_method(decision.method)
        return self._joint(mixed, measured, decision.method, chosen, decision.explain)

    def _joint(
        self,
        mixed: MixedWords,
        measured: Measured,
        method: str,
        chosen: Method,
        explain: Callable[[PrunePlan], PrunePlan] = lambda made: made,
    ) -> PrunePlan:
        from moeprune.stages.mixed import mixer_for, together

        check_joint(method, self._allocation(chosen)[0])
        joint = self._room(method, chosen)
        mixer = mixer_for(mixed, measured, joint.choose)
        return together(self.planner, joint, mixer, method=method, chosen=chosen, explain=explain)

    def _room(self, method: str = "mesa", chosen: Method | None = None) -> Joint:
        chosen = chosen or find_method(method)
        allocation, _ = self._allocation(chosen)
        room = room_for(
            self.planner.stats.model,
            allocation=allocation,
            multiple_of=self.multiple_of,
            constraints=self.constraints,
        )
        return Joint(room=room, allocation=allocation, choose=self._chooser(method, chosen))

    def _allocation(self, chosen: Method) -> tuple[str, tuple[str, ...]]:
        """How counts of layers are found, and why where the target decides."""
        if self.allocation is not None:
            return self.allocation, ()
        if chosen.allocation != BY_TARGET:
            return chosen.allocation, ()
        allocation, because = allocation_for(self.planner.target, self.planner.stats.model)
        return allocation, (because,)

    def _mixer(self, mixed: MixedWords, choose: Chooser) -> Mixer:
        from moeprune.stages.mixed import mixer_for

        return mixer_for(mixed, self._measured(mixed), choose)

    def _measured(self, mixed: MixedWords) -> Measured:
        from moeprune.stages.mixed import measure

        return measure(mixed, self.planner.stats.model, on_progress=self.on_progress)

    def _chooser(self, method: str, chosen: Method) -> Chooser:
        stats, weights = self.planner.stats, self.planner.domain_weights
        given = {} if self.method == AUTO and method != AUTO else self.given
        return Chooser(stats, method, chosen, given=given, domain_weights=weights)

    def _decided(self, budget: Budget, *, without_best: bool = False) -> Decision:
        return decide(
            self.planner.stats,
            budget=budget,
            given=self.given,
            domain_weights=self.planner.domain_weights,
            without_best=without_best,
        )

    def _fitted(self, chosen: Method, choose: Chooser) -> Budget:
        return budget_for(
            self.planner.stats.model,
            ratio=self.ratio,
            keep=self.keep,
            max_bytes=self.max_bytes,
            allocation="uniform" if chosen.allocation == EVOLVED else self._allocation(chosen)[0],
            multiple_of=self.multiple_of,
            constraints=self.constraints,
            choose=lambda budget: choose(budget, None).keep_LE,
        )
