"""export --quantize mixed --budget --stats: the schemes are chosen on the way."""

from __future__ import annotations

import tempfile
from pathlib import Path
from typing import Any

from moeprune.artefact import sha256_file
from moeprune.core.plan import PrunePlan
from moeprune.core.progress import OnProgress
from moeprune.core.quantisation import MIXED, QuantOptions
from moeprune.core.sizes import parse_bytes
from moeprune.core.stats import CalibrationStats
from moeprune.errors import UsageError
from moeprune.stages.choosing import Chooser
from moeprune.stages.mixed import measure, mixer_for, schemes_alone, with_schemes
from moeprune.stages.mixed_words import MixedWords, by_itself
from moeprune.stages.planner import Planner
from moeprune.stages.prepared import PreparedExport
from moeprune.stages.preparing import loaded, prepare


def budgeted(
    model: str | Path,
    plan: str | Path | PrunePlan | None,
    *,
    budget: str | int | None,
    stats: str | Path | CalibrationStats | None,
    stream: bool,
    on_progress: OnProgress,
    **options: Any,
) -> PrunePlan | None:
    """The plan of an export with a scheme for every layer; without a budget, the plan itself.

    Args:
        model: folder or Hub id.
        plan: which experts stay; None: all.
        budget: the most bytes that all files may take.
        stats: of the model: they say which layers matter.
        stream: whether the model's weight files come one by one.
        on_progress: told of the weights that are compared.
        **options: of the export; ``quantize`` among them.

    Raises:
        UsageError: options that do not go together, or a budget that cannot be met; and see
            :func:`moeprune.plan`.
    """
    plan = loaded(plan)
    if budget is None and stats is None:
        return plan
    quantize = options.get("quantize")
    scheme = quantize.scheme if isinstance(quantize, QuantOptions) else quantize
    if scheme != MIXED:
        raise UsageError(
            f"--budget and --stats choose a scheme for every layer: give --quantize {MIXED} too, "
            "or leave them out."
        )
    if budget is None or stats is None:
        given, other = ("--stats", "--budget SIZE") if budget is None else ("--budget", "--stats S")
        raise UsageError(
            f"{given} is given and {other.split()[0]} is not: --quantize {MIXED} needs both. Add "
            f"{other}."
        )
    if plan is not None and plan.quantize is not None:
        raise UsageError(
            "the plan says in which scheme each layer is stored. Leave --budget and --stats out, "
            "or use a plan without schemes."
        )
    if stream:
        raise UsageError(
            "--stream reads every weight file once, and a choice of schemes reads them before. "
            f"Make a plan where the model lies (plan --quantize {MIXED}), and export that."
        )
    words = MixedWords(
        weights=model,
        budget=parse_bytes(budget, option="--budget"),
        option="--budget",
        joint=False,
        revision=options.get("revision"),
    )
    sha256 = None
    if not isinstance(stats, CalibrationStats):
        sha256 = sha256_file(Path(stats))
        stats = CalibrationStats.load(Path(stats))

    def exported(made: PrunePlan) -> PreparedExport:
        with tempfile.TemporaryDirectory() as folder:
            output = Path(folder) / "export"
            return prepare(model, plan=made, output=output, check_budget=False, **options)

    chosen = by_itself(None)
    worth = Chooser(stats, MIXED, chosen, given={})
    measured = measure(words, stats.model, on_progress=on_progress)
    mixer = mixer_for(words, measured, worth, exported=exported)
    if plan is not None:
        return with_schemes(plan.check_against(measured.facts), mixer)
    planner = Planner(
        stats=stats,
        sha256=sha256,
        domain_weights=None,
        options={"quantize": MIXED, "budget": words.budget, "multiple_of": 1},
    )
    return schemes_alone(planner, worth, chosen, mixer)
