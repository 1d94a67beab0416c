"""Tasks of lm-eval by name, read and asked in one call."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.core.progress import OnProgress, ignore
from moeprune.core.sample import Sample
from moeprune.evaluate.harness.ask import ask_harness, check_askable
from moeprune.evaluate.harness.parts import HarnessPart, entries, read_harness
from moeprune.evaluate.harness.settings import HarnessSettings

if TYPE_CHECKING:
    import torch

__all__ = ["ask_harness", "check_askable", "run_harness"]


def run_harness(
    model: Any,
    tokenizer: Any,
    names: Sequence[str],
    *,
    settings: HarnessSettings | None = None,
    include: Sequence[str | Path] = (),
    trust_remote_code: bool = False,
    batch_size: int = 1,
    max_length: int | None = None,
    device: torch.device | None = None,
    kept: Mapping[str, Sequence[Sample]] | None = None,
    on_done: Callable[[HarnessPart, Sequence[Sample]], None] | None = None,
    on_progress: OnProgress = ignore,
) -> tuple[tuple[Sample, ...], dict[str, dict[str, Any]]]:
    """Ask tasks of lm-eval by name; see :func:`read_harness` and :func:`ask_harness`.

    Args:
        model: a causal language model of transformers, as it is or under a plan.
        tokenizer: its own.
        names: of tasks, groups or tags.
        settings: how they are asked.
        include: folders of YAML tasks.
        trust_remote_code: allow tasks that run code.
        batch_size: sequences side by side.
        max_length: tokens of the longest input; None: what the model's config says.
        device: where inputs go; None: where the model says it is.
        kept: name of a task of lm-eval -> its answers, of an earlier run.
        on_done: given each task that was asked, and its answers.
        on_progress: told how far it is.

    Returns:
        The answers, and what ``run.json`` says of the tasks.

    Raises:
        UsageError: a task cannot be found, read or asked.
    """
    settings = settings or HarnessSettings()
    parts = read_harness(names, settings, include=include, trust_remote_code=trust_remote_code)
    found: list[Sample] = []
    for part in parts:
        answers = (kept or {}).get(part.name)
        if answers is None:
            answers = ask_harness(
                model,
                tokenizer,
                part,
                settings,
                trust_remote_code=trust_remote_code,
                batch_size=batch_size,
                max_length=max_length,
                device=device,
                on_progress=on_progress,
            )
            if on_done is not None:
                on_done(part, answers)
        found += answers
    return tuple(found), entries(parts, settings)
