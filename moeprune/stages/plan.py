"""plan: from stats to the experts that stay. Seconds, no model, no torch."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from moeprune import allocators, criteria, plugins
from moeprune.artefact import sha256_file
from moeprune.core.budget import Budget
from moeprune.core.choice import Mask, domain_loss, jaccard, real_LE
from moeprune.core.diagnosis import STANDARD, routing, shard_warnings, unseen_warnings
from moeprune.core.methods import method as find_method
from moeprune.core.plan import PrunePlan
from moeprune.core.pooling import DomainWeights, domain_mass_DLE, pool
from moeprune.core.stats import CalibrationStats
from moeprune.core.targets import ANY, TARGETS, check_target
from moeprune.errors import UsageError
from moeprune.plugins import known

# The three ways to split four folds in two halves.
_SPLITS = (((0, 1), (2, 3)), ((0, 2), (1, 3)), ((0, 3), (1, 2)))
_DIGITS = 12  # the last bits of a sum depend on the machine; a plan should not


def plan(
    stats: str | Path | CalibrationStats,
    *,
    output: str | Path | None = None,
    method: str = "mesa",
    ratio: float | None = None,
    keep: int | None = None,
    allocation: str | None = None,
    criterion: str | None = None,
    multiple_of: int = 1,
    domain_weights: DomainWeights = None,
    seed: int | None = None,
    steps: int | None = None,
    boost: float | None = None,
    decay: str | None = None,
    target: str | None = None,
) -> PrunePlan:
    """Choose which experts to remove.

    Args:
        stats: what calibration measured, or the file it wrote.
        output: where to write ``plan.json``; None = nowhere.
        method: see ``core.methods.METHODS``.
        ratio: share of the routed experts to remove; or
        keep: experts to keep in every layer (``global``: on average).
        allocation: ``"uniform"`` or ``"global"``; None = the method's own.
        criterion: another criterion for a method that only ranks; None = the method's own.
        multiple_of: kept counts must be a multiple of this.
        domain_weights: ``{"math": 2.0}``, ``"tokens"``, or None: every domain weighs the same.
        seed: of the criterion ``random``; None = 0.
        steps: plans that ``mesa`` looks at; None = 20.
        boost: how strongly ``mesa`` protects a domain; None = 0.15.
        decay: how ``mesa``'s boost falls: ``"linear"`` (None), ``"cosine"`` or ``"constant"``.
        target: the runtime that must load the result, see ``core.targets.TARGETS``; None = not
            checked.

    Raises:
        UsageError: options that do not fit each other, the model or the target.
        StatsError: the stats cannot be read, or a domain holds no token.
        OutputError: the plan cannot be written.
    """
    sha256 = None
    if not isinstance(stats, CalibrationStats):
        path = Path(stats)
        stats = CalibrationStats.load(path)
        sha256 = sha256_file(path)
        if output is not None and Path(output).resolve() == path.resolve():
            raise UsageError(f"{output} is the stats file itself; name another file for the plan.")
    if target is not None:
        known(target, (*TARGETS, ANY), kind="target")
    chosen = find_method(method, criterion=criterion)
    scorer = plugins.load(criteria, chosen.criterion)
    allocator = plugins.load(allocators, chosen.allocator)
    given = {"seed": seed, "steps": steps, "boost": boost, "decay": decay}
    scoring, allocating = _options(method, given, scorer, allocator)
    allocation = chosen.allocation if allocation is None else allocation
    budget = Budget.of(
        stats.model, ratio=ratio, keep=keep, allocation=allocation, multiple_of=multiple_of
    )

    def choose(folds: Sequence[int] | None) -> Mask:
        sums = pool(stats, scorer.NEEDS, domain_weights=domain_weights, folds=folds)
        score_LE = scorer.score(sums, **scoring)
        mass_DLE = domain_mass_DLE(stats, folds=folds)
        keep_LE: Mask = allocator.allocate(score_LE, mass_DLE=mass_DLE, budget=budget, **allocating)
        return keep_LE

    asked: dict[str, Any] = {
        "ratio": ratio,
        "keep": keep,
        "multiple_of": multiple_of,
        "target": target,
    }
    options = {key: value for key, value in asked.items() if value is not None}
    if domain_weights is not None:
        options["domain_weights"] = _plain(domain_weights)
    made = _describe(
        stats,
        choose(None),
        stats_sha256=sha256,
        method=method,
        criterion=chosen.criterion,
        allocation=allocation,
        options={**options, **scoring, **allocating},
        routing=routing(stats, domain_weights=domain_weights),
        stability=_stability(stats, choose),
    )
    if target is not None:
        warning = check_target(target, stats.model, [len(ids) for ids in made.keep])
        made = replace(made, warnings=made.warnings + ((warning,) if warning else ()))
    if output is not None:
        made.save(Path(output))
    return made


def _options(
    method: str, given: Mapping[str, Any], scorer: ModuleType, allocator: ModuleType
) -> tuple[dict[str, Any], dict[str, Any]]:
    """The keyword arguments of the criterion and of the allocator, defaults filled in."""
    takes = (*scorer.OPTIONS, *allocator.OPTIONS)
    for name, value in given.items():
        if value is not None and name not in takes:
            has = ", ".join(f"--{option}" for option in takes) or "no option of its own"
            raise UsageError(
                f"--{name} {value} does not go with --method {method}, which has {has}. "
                f"Leave --{name} out."
            )

    def arguments(names: Sequence[str], function: Callable[..., Any]) -> dict[str, Any]:
        defaults = inspect.signature(function).parameters
        return {
            name: defaults[name].default if given[name] is None else given[name] for name in names
        }

    return (
        arguments(scorer.OPTIONS, scorer.score),
        arguments(allocator.OPTIONS, allocator.allocate),
    )


def _describe(
    stats: CalibrationStats, keep_LE: Mask, *, routing: Mapping[str, Any], method: str, **known: Any
) -> PrunePlan:
    """The plan of a choice of experts, with what it costs."""
    model = stats.model
    loss_D = domain_loss(domain_mass_DLE(stats), keep_LE)
    worst = int(np.argmax(loss_D))
    loss = {
        domain.name: round(float(share), _DIGITS)
        for domain, share in zip(stats.domains, loss_D, strict=True)
    }
    leave_L = np.array(model.num_experts) - keep_LE.sum(axis=1)
    freed = sum(int(leave) * size for leave, size in zip(leave_L, model.expert_bytes, strict=True))
    warnings = [*shard_warnings(stats), *unseen_warnings(stats)]
    if method == "mesa" and routing["regime"] == STANDARD:
        warnings.append(
            f"the routing is not over-dispersed (entropy ratio {routing['entropy_ratio']:.2f}, "
            "mesa is meant for more than 0.85): its paper saw it do worse than reap there, so "
            "compare with --method reap."
        )
    return PrunePlan(
        model_name=model.name,
        model_fingerprint=model.fingerprint,
        model_type=model.model_type,
        top_k=model.top_k,
        num_groups=model.num_groups,
        top_groups=model.top_groups,
        layer_ids=model.layer_ids,
        sets=model.sets,
        num_experts=model.num_experts,
        keep=tuple(tuple(int(e) for e in np.flatnonzero(keep_E)) for keep_E in keep_LE),
        method=method,
        domain_loss=loss,
        worst_domain=stats.domains[worst].name,
        worst_domain_loss=loss[stats.domains[worst].name],
        routing=routing,
        size={"bytes_before": model.total_bytes, "bytes_after": model.total_bytes - freed},
        warnings=tuple(warnings),
        **known,
    )


def _stability(
    stats: CalibrationStats, choose: Callable[[Sequence[int] | None], Mask]
) -> dict[str, Any]:
    """Overlap of the plans that two halves of the text give: 1 = any text would give this plan."""
    real = real_LE(stats.model.num_experts)
    splits: list[float | None] = []
    for halves in _SPLITS:
        if all(domain.num_tokens(folds=half) for domain in stats.domains for half in halves):
            one_LE, other_LE = (real & ~choose(half) for half in halves)
            splits.append(round(jaccard(one_LE, other_LE), _DIGITS))
        else:
            splits.append(None)  # too few documents: a half has no text of some domain
    measured = [overlap for overlap in splits if overlap is not None]
    mean = round(sum(measured) / len(measured), _DIGITS) if measured else None
    return {"jaccard": mean, "splits": splits}


def _plain(domain_weights: Mapping[str, float] | str) -> str | dict[str, float]:
    if isinstance(domain_weights, str):
        return domain_weights
    return {name: float(domain_weights[name]) for name in sorted(domain_weights)}
