"""plan: from stats to the experts that stay. Seconds, no model, no torch; but for a search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Unpack

from moeprune.artefact import sha256_file
from moeprune.core.budget import Budget
from moeprune.core.choice import Outcome
from moeprune.core.diagnosis import routing
from moeprune.core.fitting import budget_for
from moeprune.core.methods import AUTO, EVOLVED, MASS, SIGNAL
from moeprune.core.methods import method as find_method
from moeprune.core.plan import PrunePlan
from moeprune.core.pooling import DomainWeights
from moeprune.core.progress import OnProgress, ignore
from moeprune.core.sizes import parse_bytes
from moeprune.core.stats import CalibrationStats
from moeprune.core.targets import ANY, TARGETS, check_target
from moeprune.plugins import known
from moeprune.stages.auto import decide
from moeprune.stages.choosing import Chooser
from moeprune.stages.constrained import constraints_for
from moeprune.stages.described import describe
from moeprune.stages.plan_output import check_outputs
from moeprune.stages.search import search
from moeprune.stages.search_words import NUMBERS, SearchWords, given_words
from moeprune.stages.stability import stability


def plan(
    stats: str | Path | CalibrationStats,
    *,
    output: str | Path | None = None,
    method: str = AUTO,
    ratio: float | None = None,
    keep: int | None = None,
    max_bytes: str | int | None = None,
    allocation: str | None = None,
    criterion: str | None = None,
    signal: str | None = None,
    multiple_of: int = 1,
    keep_layers: Iterable[int] | None = None,
    layer_keep: Mapping[int, int] | None = None,
    protect_super_experts: bool = False,
    must_keep: str | Path | Mapping[Any, Any] | None = None,
    domain_weights: DomainWeights = None,
    seed: int | None = None,
    steps: int | None = None,
    boost: float | None = None,
    decay: str | None = None,
    gap: float | None = None,
    time_limit: float | None = None,
    target: str | None = None,
    on_progress: OnProgress = ignore,
    **search_words: Unpack[SearchWords],
) -> PrunePlan:
    """Choose which experts to remove.

    Args:
        stats: what calibration measured, or the file it wrote.
        output: where to write ``plan.json``; None = nowhere.
        method: see ``core.methods.METHODS``; the plan of ``"auto"`` states the method it chose,
            and why.
        ratio: share of the routed experts to remove; or
        keep: experts to keep in every layer (``global``: on average); or
        max_bytes: the most that the model may take, e.g. ``"40GB"``: the largest one that fits.
        allocation: ``"uniform"`` or ``"global"``; None = the method's own.
        criterion: another criterion for a method that only ranks; None = the method's own.
        signal: another criterion by which ``mesa`` and ``mesa-exact`` weigh what a domain loses;
            None = router mass.
        multiple_of: kept counts must be a multiple of this.
        keep_layers: layers that are never pruned, by the ids that ``inspect`` shows; -1 is the last
            MoE layer. ``ratio`` and ``keep`` speak of the other layers.
        layer_keep: layer -> experts that it keeps; ``ratio`` and ``keep`` speak of the others.
        protect_super_experts: keep those of :func:`moeprune.core.super_experts.super_experts`.
        must_keep: layer -> ids of experts that stay, or a JSON file of that; see
            :func:`moeprune.core.must_keep.must_keep_rows`.
        domain_weights: ``{"math": 2.0}``, ``"tokens"``, or None: every domain weighs the same.
        seed: of the criterion ``random``, and of the search; None = 0.
        steps: plans that ``mesa`` looks at; None = 20.
        boost: how strongly ``mesa`` protects a domain; None = 0.15.
        decay: how ``mesa``'s boost falls: ``"linear"`` (None), ``"cosine"`` or ``"constant"``.
        gap: relative distance to the optimum at which ``mesa-exact`` may stop; None = 1e-4.
        time_limit: seconds after which it takes the best plan it has; None = 60.
        target: the runtime that must load the result, see ``core.targets.TARGETS``; None = not
            checked.
        on_progress: told how a search goes on; other methods take seconds.
        search_words: of ``evoesap``, which needs the model: see
            :class:`moeprune.stages.search_words.SearchWords`.

    Raises:
        UsageError: options that do not fit each other, the model or the target; or the output is
            one of the inputs.
        StatsError: the stats cannot be read, or a domain holds no token.
        OutputError: the plan cannot be written.
    """
    if output is not None:
        inputs = {"must_keep": must_keep, **search_words}
        check_outputs([Path(output)], stats=stats, options=inputs)
    sha256 = None
    if not isinstance(stats, CalibrationStats):
        path = Path(stats)
        stats = CalibrationStats.load(path)
        sha256 = sha256_file(path)
    if target is not None:
        known(target, (*TARGETS, ANY), kind="target")
    chosen = find_method(method, criterion=criterion, signal=signal)
    words = given_words(search_words, method=method, chosen=chosen, allocation=allocation)
    given = {
        "seed": seed,
        "steps": steps,
        "boost": boost,
        "decay": decay,
        "gap": gap,
        "time_limit": time_limit,
    }
    given |= {name: words.get(name) for name in NUMBERS}
    allocation = chosen.allocation if allocation is None else allocation
    limits = constraints_for(
        stats,
        keep_layers=keep_layers,
        layer_keep=layer_keep,
        protect_super_experts=protect_super_experts,
        must_keep=must_keep,
    )
    most = None if max_bytes is None else parse_bytes(max_bytes, option="--max-bytes")

    def fitted(choose: Chooser) -> Budget:
        return budget_for(
            stats.model,
            ratio=ratio,
            keep=keep,
            max_bytes=most,
            allocation="uniform" if chosen.allocation == EVOLVED else allocation,
            multiple_of=multiple_of,
            constraints=limits.constraints,
            choose=lambda budget: choose(budget, None).keep_LE,
        )

    choose = Chooser(stats, method, chosen, given=given, domain_weights=domain_weights)
    budget = fitted(choose)
    pick: Callable[[Budget, Sequence[int] | None], Outcome] = choose
    decision = None
    if method == AUTO:
        decision = decide(stats, budget=budget, given=given, domain_weights=domain_weights)
        method, chosen = decision.method, find_method(decision.method)
        pick = choose = Chooser(stats, method, chosen, given=given, domain_weights=domain_weights)
        budget = fitted(choose)
    searched = None
    if chosen.allocation == EVOLVED:
        pick = searched = search(
            stats,
            choose,
            uniform=budget,
            multiple_of=multiple_of,
            constraints=limits.constraints,
            words=words,
            fits_bytes=most is not None,
            target=target,
            output=None if output is None else Path(output),
            on_progress=on_progress,
        )
        budget = searched.budget
    asked: dict[str, Any] = {
        "ratio": ratio,
        "keep": keep,
        "max_bytes": most,
        "multiple_of": multiple_of,
        "target": target,
    }
    options = {key: value for key, value in asked.items() if value is not None}
    if domain_weights is not None:
        options["domain_weights"] = _plain(domain_weights)
    options |= limits.options
    if searched is not None:
        options |= searched.options
    outcome = pick(budget, None)
    own_signal = chosen.option == SIGNAL and chosen.criterion != MASS
    made = describe(
        stats,
        replace(outcome, details={**outcome.details, **limits.details}),
        budget=budget,
        stats_sha256=sha256,
        method=method,
        domain_weights=domain_weights,
        signal=(chosen.criterion, choose.scorer.by_domain()) if own_signal else None,
        criterion=chosen.criterion,
        allocation=allocation,
        options={**options, **choose.options},
        routing=routing(stats, domain_weights=domain_weights),
        stability=stability(stats, lambda folds: pick(budget, folds).keep_LE),
    )
    if decision is not None:
        made = decision.explain(made)
    warning = check_target(target, stats.model, [len(ids) for ids in made.keep])
    more = (*(searched.warnings if searched else ()), *([warning] if warning else ()))
    if more:
        made = replace(made, warnings=(*made.warnings, *more))
    if output is not None:
        made.save(Path(output))
        if searched is not None:
            searched.finish()
    return made


def _plain(domain_weights: Mapping[str, float] | str) -> str | dict[str, float]:
    if isinstance(domain_weights, str):
        return domain_weights
    return {name: float(domain_weights[name]) for name in sorted(domain_weights)}
