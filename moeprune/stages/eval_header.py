"""What ``run.json`` says of a run: model, variant, tasks, and how it was asked."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from importlib.metadata import version
from typing import Any

from moeprune.core.guard import Finding
from moeprune.core.run import Run
from moeprune.core.sample import Sample
from moeprune.core.summary import summarise
from moeprune.core.tasks import Task
from moeprune.stages.calibrated import versions
from moeprune.stages.eval_model import AskedModel
from moeprune.stages.eval_variants import Variant


def task_entries(tasks: Sequence[Task]) -> dict[str, dict[str, Any]]:
    """Name -> entry in ``run.json``, of tasks that are ours."""
    return {
        task.name: {
            "kind": task.kind,
            "sha256": task.sha256,
            "protocol": task.protocol.to_json(),
            "questions": len(task.questions),
            **({"details": dict(task.details)} if task.details else {}),
        }
        for task in tasks
    }


def run_of(
    variant: Variant,
    asked: AskedModel,
    *,
    entries: Mapping[str, Mapping[str, Any]],
    samples: Sequence[Sample],
    probe: Mapping[str, str],
    agreement: Mapping[str, Any],
    answer_loss: Mapping[str, Any],
    provenance: Mapping[str, Any],
) -> Run:
    """The run of one variant, with the figures of its tasks.

    Args:
        variant: what answered.
        asked: the model.
        entries: task -> what is to be said of it.
        samples: in their order.
        probe: see :func:`moeprune.evaluate.probe.logits_probe`.
        agreement: how far it selects another model's experts; empty: not asked.
        answer_loss: of its right answers; empty: not measured.
        provenance: how it was asked.
    """
    run = Run(
        name=variant.name,
        model=asked.header(),
        variant=variant.header(asked),
        tasks=entries,
        samples=tuple(samples),
        probe=probe,
        agreement=agreement,
        answer_loss=answer_loss,
        provenance=provenance,
    )
    figures = summarise(run)
    return replace(
        run,
        tasks={
            name: {**entry, **({"summary": figures[name].to_json()} if name in figures else {})}
            for name, entry in entries.items()
        },
    )


def guarded(run: Run, findings: Sequence[Finding]) -> Run:
    """The run with what the protocol guards found."""
    return replace(run, guards=tuple(finding.to_json() for finding in findings))


def check_inputs(runs: Sequence[Run]) -> None:
    """All variants were given the same, byte for byte: else nothing could be compared."""
    first = {sample.key: sample.input for sample in runs[0].samples}
    for run in runs[1:]:
        assert {sample.key: sample.input for sample in run.samples} == first, run.name


def made_with(live: Any, device: str | None, *, seeds: int, harness: bool) -> dict[str, Any]:
    """How the answers were made, apart from what was asked.

    Args:
        live: the model.
        device: as the user names it.
        seeds: how often a question was asked whose answer is drawn.
        harness: lm-eval asked some of it.
    """
    from moeprune.observe.load import check_device, decoder_dtype

    place = check_device(device)
    return {
        "dtype": decoder_dtype(live),
        "device": "auto" if place is None else place.type,
        "seeds": seeds,
        "versions": {**versions(), **({"lm_eval": version("lm_eval")} if harness else {})},
    }
