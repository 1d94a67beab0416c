"""plan --quantize mixed: the model's weights are measured, and the plan that fits is found."""

from __future__ import annotations

import tempfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moeprune.core.choice import Mask, Outcome, real_LE
from moeprune.core.facts import ModelFacts
from moeprune.core.methods import Method
from moeprune.core.plan import PrunePlan
from moeprune.core.plan_edits import kept_sha256
from moeprune.core.progress import OnProgress
from moeprune.core.quantisation import MIXED, LayerSchemes
from moeprune.errors import MismatchError
from moeprune.stages.candidates import Choices
from moeprune.stages.choosing import Chooser
from moeprune.stages.identify import OpenModel, open_model
from moeprune.stages.joint import Joint
from moeprune.stages.mixed_words import MixedWords
from moeprune.stages.mixing import Mixer, Prepare
from moeprune.stages.planner import Planner
from moeprune.stages.preparing import prepare
from moeprune.stages.weighed import Weighed, weigh


@dataclass(frozen=True, slots=True)
class Measured:
    """The model that the stats are of.

    Attributes:
        facts: of it.
        weighed: its experts in every scheme.
    """

    facts: ModelFacts
    weighed: Weighed


def measure(
    words: MixedWords,
    facts: ModelFacts,
    *,
    on_progress: OnProgress,
    opened: OpenModel | None = None,
) -> Measured:
    """Measure the weights of the model that the stats are of.

    Args:
        words: what was asked for.
        facts: of the stats.
        on_progress: told of the weights that are compared.
        opened: the model; None: that of ``words``.

    Raises:
        MismatchError: the model is another one.
        UnsupportedModelError: it is quantised already, or a scheme cannot hold its weights.
    """
    opened = opened or open_model(words.weights, revision=words.revision)
    mine = opened.facts
    if mine.fingerprint != facts.fingerprint or mine.num_experts != facts.num_experts:
        raise MismatchError(
            f"the stats are of {facts.name} (fingerprint {facts.fingerprint[:12]}), the weights of "
            f"{mine.name} ({mine.fingerprint[:12]}). Give the model that the stats are of."
        )
    return Measured(mine, weigh(opened, on_progress=on_progress))


def mixer_for(
    words: MixedWords,
    measured: Measured,
    worth: Chooser,
    *,
    exported: Prepare | None = None,
) -> Mixer:
    """What finds schemes.

    Args:
        words: what was asked for.
        measured: the model.
        worth: its scores say what experts are worth.
        exported: gives the export of a plan; None: with no further options.
    """
    facts = measured.facts
    return Mixer(
        words=words,
        choices=Choices(measured.weighed, worth.scored(None), facts.num_experts),
        criterion=worth.scorer.name,
        name=facts.name,
        prepare=exported or _exported(words, facts),
    )


def with_schemes(plan: PrunePlan, mixer: Mixer) -> PrunePlan:
    """The same experts, stored within the budget.

    Raises:
        UsageError: no export is small enough, or this one is already.
    """
    current = plan.without_stale()

    def describe(keep_LE: Mask, schemes: LayerSchemes) -> PrunePlan:
        sha256 = kept_sha256(plan.layer_ids, plan.sets, plan.keep, schemes.schemes)
        return replace(current, quantize=schemes, kept_sha256=sha256)

    keep_LE = plan.keep_mask_LE()
    return mixer.fit(
        lambda choices: [choices.of_kept(keep_LE)], describe, most_leave=_gone(keep_LE, mixer)
    )


def schemes_alone(planner: Planner, choose: Chooser, chosen: Method, mixer: Mixer) -> PrunePlan:
    """All experts, stored within the budget.

    Raises:
        UsageError: no export is small enough, or the model is already.
    """
    keep_LE = real_LE(mixer.choices.num_experts)
    return mixer.fit(
        lambda choices: [choices.of_kept(keep_LE)],
        _unpruned(planner, choose, chosen),
        most_leave=_gone(keep_LE, mixer),
    )


def together(
    planner: Planner,
    joint: Joint,
    mixer: Mixer,
    *,
    method: str,
    chosen: Method,
    explain: Callable[[PrunePlan], PrunePlan],
) -> PrunePlan:
    """Some of the experts, stored within the budget; how many is part of the choice.

    Args:
        planner: makes the plan.
        joint: the choices of the method.
        mixer: finds schemes.
        method: its name.
        chosen: its parts.
        explain: adds why this method: what the plan says takes bytes of the export too.

    Raises:
        UsageError: no export is small enough, or the model is already.
    """
    whole = _unpruned(planner, joint.choose, chosen)

    def describe(keep_LE: Mask, schemes: LayerSchemes) -> PrunePlan:
        budget = joint.budget(keep_LE)
        if budget is None:
            return whole(keep_LE, schemes)
        made = planner.plan(
            Outcome(keep_LE),
            method=method,
            chosen=chosen,
            choose=joint.choose,
            allocation=joint.allocation,
            budget=budget,
            pick=joint.pick(keep_LE),
            quantize=schemes,
        )
        return explain(made)

    return mixer.fit(joint.ways, describe, most_leave=joint.most_leave)


def _unpruned(
    planner: Planner, choose: Chooser, chosen: Method
) -> Callable[[Mask, LayerSchemes], PrunePlan]:
    def describe(keep_LE: Mask, schemes: LayerSchemes) -> PrunePlan:
        return planner.plan(
            Outcome(keep_LE),
            method=MIXED,
            chosen=chosen,
            choose=choose,
            allocation="uniform",
            budget=None,
            pick=choose,
            quantize=schemes,
        )

    return describe


def _gone(keep_LE: Mask, mixer: Mixer) -> list[int]:
    each = zip(mixer.choices.num_experts, keep_LE.sum(axis=1), strict=True)
    return [count - int(kept) for count, kept in each]


def _exported(words: MixedWords, facts: ModelFacts) -> Prepare:
    """The export of a plan with no further options than its own counts need."""

    def exported(plan: PrunePlan) -> Any:
        uneven = plan.uniform_count is None
        with tempfile.TemporaryDirectory() as folder:
            return prepare(
                words.weights,
                plan=plan,
                output=Path(folder) / "export",
                revision=words.revision,
                per_layer=uneven and not facts.no_per_layer,
                pad=uneven and bool(facts.no_per_layer),
                check_budget=False,
            )

    return exported
