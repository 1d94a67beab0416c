"""analyse: what the stats say of routing, of domains and of plans. No model, no torch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from moeprune.artefact import readable_json, sha256_file, write_bytes
from moeprune.core.budget import Budget
from moeprune.core.plan import PrunePlan
from moeprune.core.stats import CalibrationStats
from moeprune.errors import UsageError
from moeprune.kinds import check_replaced
from moeprune.stages import comparisons, findings
from moeprune.stages.gains import Rank, routing_profile
from moeprune.stages.sensitivity import mesa_settings, text_volume

SCHEMA = "moeprune.analysis/1"
RATIO = 0.25  # of the paper's tables

_DIGITS = 9


def analyse(
    stats: str | Path | CalibrationStats,
    *,
    plans: Sequence[str | Path | PrunePlan] = (),
    output: str | Path | None = None,
    ratio: float | None = None,
    k1: Sequence[int] = (),
    k2: Sequence[Rank] = (),
    seed: int = 0,
) -> dict[str, Any]:
    """Entropy, mass, gains, domains, plans, sensitivity and regime of one model.

    Args:
        stats: what calibration measured, or the file it wrote.
        plans: plans of this model to compare with each other.
        output: where to write ``analysis.json``; None = nowhere.
        ratio: share of the experts that leave in the plans whose sensitivity is measured; None =
            0.25, and no sensitivity where the model cannot lose so many.
        k1: numbers of experts run per token whose gains are wanted, with ``k2``; none: some.
        k2: numbers of ranks in the denominator, ``"E"`` for all.
        seed: of the regime simulation.

    Returns:
        The analysis as plain JSON values; docs/formats.md describes them.

    Raises:
        UsageError: a ratio that this model cannot lose, k₁ and k₂ that it does not have, or the
            output is one of the inputs.
        StatsError: the stats cannot be read, or a domain holds no token.
        PlanError: a plan cannot be read.
        MismatchError: a plan is of another model.
        OutputError: the output cannot be written.
    """
    _check_output(output, [stats, *plans])
    sha256 = None
    if not isinstance(stats, CalibrationStats):
        path = Path(stats)
        stats = CalibrationStats.load(path)
        sha256 = sha256_file(path)
    named = _named(plans)
    for plan in named.values():
        plan.check_against(stats.model)
    body = {
        "schema": SCHEMA,
        "model": findings.model(stats),
        "stats": sha256,
        "domains": {domain.name: domain.num_tokens() for domain in stats.domains},
        "layers": findings.layers(stats),
        "entropy": findings.entropy(stats),
        "mass": findings.mass(stats),
        "routing_profile": routing_profile(stats, k1=k1, k2=k2),
        "divergence": comparisons.divergence(stats),
        "overlap": comparisons.overlap(stats),
        "attention": comparisons.attention(stats),
        "plans": comparisons.plans(stats, named),
        "sensitivity": _sensitivity(stats, ratio),
        "regime": findings.regime(stats, seed=seed),
    }
    body = {key: _rounded(value) for key, value in body.items()}
    if output is not None:
        write_bytes(Path(output), readable_json(body).encode())
    return body


def _sensitivity(stats: CalibrationStats, ratio: float | None) -> dict[str, Any] | None:
    asked = RATIO if ratio is None else ratio
    try:
        budget = Budget.of(stats.model, ratio=asked, keep=None, allocation="uniform")
    except UsageError:
        if ratio is not None:
            raise
        return None
    return {
        "ratio": asked,
        "allocation": "uniform",
        **mesa_settings(stats, budget),
        "volume": text_volume(stats, budget),
    }


def _named(plans: Sequence[str | Path | PrunePlan]) -> dict[str, PrunePlan]:
    """Plans by what they are called: the file, or method and position of one in memory."""
    named: dict[str, PrunePlan] = {}
    for position, plan in enumerate(plans):
        in_memory = isinstance(plan, PrunePlan)
        name = f"{plan.method} ({position + 1})" if isinstance(plan, PrunePlan) else str(plan)
        if name in named:
            raise UsageError(f"plan {name} is named twice; name each plan once.")
        named[name] = plan if in_memory else PrunePlan.load(Path(plan))  # type: ignore[assignment,arg-type]
    return named


def _check_output(output: str | Path | None, inputs: Sequence[object]) -> None:
    read = [Path(item).resolve() for item in inputs if isinstance(item, str | Path)]
    if output is not None and Path(output).resolve() in read:
        raise UsageError(
            f"{output} is read here and would be lost; name another file for the analysis."
        )
    if output is not None:
        check_replaced(Path(output), own="an analysis")


def _rounded(value: Any) -> Any:
    """Numbers without the last digits, which depend on the machine; what is not known is null."""
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_rounded(item) for item in value]
    if isinstance(value, float):
        return None if math.isnan(value) else round(value, _DIGITS)
    return value
