"""plan: from stats to the experts that stay. Seconds, no model, no torch; but for a search."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Unpack

from moeprune.artefact import sha256_file
from moeprune.core.methods import AUTO
from moeprune.core.methods import method as find_method
from moeprune.core.plan import PrunePlan
from moeprune.core.pooling import DomainWeights
from moeprune.core.progress import OnProgress, ignore
from moeprune.core.quantisation import MIXED
from moeprune.core.sizes import parse_bytes
from moeprune.core.stats import CalibrationStats
from moeprune.core.targets import ANY, TARGETS
from moeprune.errors import UsageError
from moeprune.plugins import known
from moeprune.stages.constrained import constraints_for
from moeprune.stages.deciding import Deciding
from moeprune.stages.mixed_words import MixedWords, by_itself
from moeprune.stages.plan_output import check_outputs
from moeprune.stages.planner import Planner
from moeprune.stages.search_words import NUMBERS, SearchWords, given_words


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
    quantize: str | None = None,
    budget: str | int | None = None,
    weights: str | Path | None = None,
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
        allocation: ``"uniform"`` or ``"global"``; None = the method's own; of ``best``: global
            where the target loads it, else uniform.
        criterion: another criterion for a method that only ranks; None = the method's own.
        signal: another criterion by which ``best``, ``mesa`` and ``mesa-exact`` weigh what a
            domain loses; None = ``fisher-cf`` of best, router mass of the others.
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
        gap: relative distance to the optimum at which ``best`` and ``mesa-exact`` may stop; None =
            1e-4.
        time_limit: seconds after which these take the best plan they have; None = 60.
        target: the runtime that must load the result, see ``core.targets.TARGETS``; None = not
            checked.
        quantize: ``"mixed"``: choose a scheme for every layer too, in which export stores its
            experts, such that the sum of what experts are worth times the relative error of their
            weights is least. Without ``ratio``, ``keep`` and ``max_bytes`` no expert leaves. With
            ``max_bytes`` how many leave is decided in one with the schemes: an expert that leaves
            has error 1.
        budget: with ``quantize``: the most bytes that all files of the export may take.
        weights: with ``quantize``: folder or Hub id of the model that the stats are of.
        on_progress: told how a search or the comparison of schemes goes on; other methods take
            seconds.
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
    mixed = MixedWords.of(
        quantize,
        budget=budget,
        max_bytes=max_bytes,
        weights=weights,
        revision=search_words.pop("revision", None) if weights is not None else None,
    )
    alone = (
        mixed is not None and not mixed.joint and not layer_keep and (ratio, keep) == (None,) * 2
    )
    if alone and method == AUTO:
        method, chosen = MIXED, by_itself(criterion)
    else:
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
    limits = constraints_for(
        stats,
        keep_layers=keep_layers,
        layer_keep=layer_keep,
        protect_super_experts=protect_super_experts,
        must_keep=must_keep,
    )
    if mixed is not None:
        mixed.check_target(target)
    if alone:
        _check_alone(limits.options, multiple_of=multiple_of, allocation=allocation)
    most = None if max_bytes is None else parse_bytes(max_bytes, option="--max-bytes")
    asked: dict[str, Any] = {
        "ratio": ratio,
        "keep": keep,
        "max_bytes": most,
        "multiple_of": multiple_of,
        "target": target,
        "quantize": quantize,
        "budget": mixed.budget if mixed is not None and not mixed.joint else None,
    }
    options = {key: value for key, value in asked.items() if value is not None}
    if domain_weights is not None:
        options["domain_weights"] = _plain(domain_weights)
    deciding = Deciding(
        planner=Planner(
            stats=stats,
            sha256=sha256,
            domain_weights=domain_weights,
            options={**options, **limits.options},
            details=limits.details,
            target=target,
        ),
        method=method,
        chosen=chosen,
        given=given,
        allocation=allocation,
        ratio=ratio,
        keep=keep,
        max_bytes=most,
        multiple_of=multiple_of,
        constraints=limits.constraints,
        words=words,
        output=None if output is None else Path(output),
        on_progress=on_progress,
    )
    made, finish = _made(deciding, mixed, alone=alone)
    if output is not None:
        made.save(Path(output))
        finish()
    return made


def _made(
    deciding: Deciding, mixed: MixedWords | None, *, alone: bool
) -> tuple[PrunePlan, Callable[[], None]]:
    """The plan, and what is to be done once it is saved."""
    if mixed is None:
        return deciding.pruned()
    if alone or mixed.joint:
        return deciding.alone(mixed) if alone else deciding.joint(mixed), lambda: None
    return deciding.stored(mixed)


def _check_alone(options: Mapping[str, Any], *, multiple_of: int, allocation: str | None) -> None:
    """Check that nothing is said of experts that leave, where none does."""
    given = {**options, "multiple_of": multiple_of if multiple_of > 1 else None}
    for name, value in {**given, "allocation": allocation}.items():
        if value is not None:
            raise UsageError(
                f"--{name.replace('_', '-')} speaks of experts that leave, and without --ratio, "
                "--keep and --max-bytes none does. Leave it out, or give one of these."
            )


def _plain(domain_weights: Mapping[str, float] | str) -> str | dict[str, float]:
    if isinstance(domain_weights, str):
        return domain_weights
    return {name: float(domain_weights[name]) for name in sorted(domain_weights)}
