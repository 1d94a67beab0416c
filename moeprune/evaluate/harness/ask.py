"""One task of lm-eval, asked of a loaded model: lm-eval asks and judges, what it finds is ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from moeprune.core.foreign import foreign_errors
from moeprune.core.progress import OnProgress, Progress, ignore
from moeprune.core.sample import Sample
from moeprune.errors import UsageError
from moeprune.evaluate.harness.askable import check_askable, check_fits
from moeprune.evaluate.harness.parts import HarnessPart
from moeprune.evaluate.harness.quiet import contained, seeded
from moeprune.evaluate.harness.samples import samples_of
from moeprune.evaluate.harness.settings import HarnessSettings

if TYPE_CHECKING:
    import torch

__all__ = ["ask_harness", "check_askable"]


def ask_harness(
    model: Any,
    tokenizer: Any,
    part: HarnessPart,
    settings: HarnessSettings,
    *,
    trust_remote_code: bool = False,
    batch_size: int = 1,
    max_length: int | None = None,
    device: torch.device | None = None,
    on_progress: OnProgress = ignore,
) -> tuple[Sample, ...]:
    """Ask one task of lm-eval; what is read once may be asked of any number of variants.

    Random states, streams, log settings, the environment and the tokenizer are left as they were.

    Args:
        model: a causal language model of transformers, as it is or under a plan.
        tokenizer: its own.
        part: the task.
        settings: those it was read with.
        trust_remote_code: see :func:`read_harness`.
        batch_size: sequences side by side; as with lm-eval itself, another one may round otherwise.
        max_length: tokens of the longest input; None: what the model's config says.
        device: where inputs go; None: where the model says it is.
        on_progress: told how far it is, in sequences.

    Returns:
        An answer a question. ``details["cut"]``: its input was longer than the model reads.

    Raises:
        UsageError: lm-eval fails.
    """
    told = check_askable((part,), settings, tokenizer)
    with (
        contained() as streams,
        foreign_errors(
            f"lm-eval cannot ask task {part.name!r}",
            "Leave the task out, or run it by lm-eval alone to see where.",
            error=UsageError,
            also=(AssertionError, ArithmeticError),
        ),
    ):
        import torch
        from lm_eval import evaluate

        from moeprune.evaluate.harness.model import LoadedModel

        def on_rows(done: int, total: int) -> None:
            with streams.own():
                on_progress(Progress(f"lm_eval {part.name}", done, total, "sequences"))

        asked = LoadedModel(
            model,
            tokenizer,
            batch_size=batch_size,
            max_length=max_length,
            device=device,
            template=told,
            think_end=settings.think_end,
            on_rows=on_rows,
        )
        check_fits(part, asked)
        seeded(settings.seed)
        part.built.set_fewshot_seed(seed=settings.seed)
        try:
            results = evaluate(
                lm=asked,
                task_dict={"tasks": {part.name: part.built}, "groups": {}},
                limit=settings.limit,
                bootstrap_iters=0,
                log_samples=True,
                system_instruction=settings.system,
                apply_chat_template=bool(settings.chat_template),
                fewshot_as_multiturn=bool(settings.chat_template),
                confirm_run_unsafe_code=trust_remote_code,
            )
        except torch.OutOfMemoryError as problem:
            raise UsageError(
                f"{batch_size} sequences of task {part.name!r} of lm-eval do not fit the GPU's "
                "memory; give a smaller --batch-size."
            ) from problem
        logged = results["samples"][part.name]
    answers = samples_of(
        logged, part=part.name, whole=part.whole, written=asked.written, lengths=asked.lengths
    )
    cut = _cut_documents(logged, asked.cut)
    return tuple(
        replace(answer, details={**answer.details, "cut": True}) if number in cut else answer
        for number, answer in enumerate(answers)
    )


def _cut_documents(logged: Sequence[Mapping[str, Any]], cut: set[tuple[Any, ...]]) -> set[int]:
    """Places of the documents one of whose inputs was cut."""
    places: dict[Any, int] = {}
    found: set[int] = set()
    for entry in logged:
        place = places.setdefault(entry["doc_id"], len(places))
        for request in entry["arguments"]:
            if tuple(request) in cut if len(request) < 2 else _texts(request) in cut:
                found.add(place)
    return found


def _texts(request: Sequence[Any]) -> tuple[Any, ...]:
    """What the model keeps of a request: both texts, or the prompt alone where one is written."""
    return tuple(request) if isinstance(request[1], str) else (request[0],)
