"""The loss of answers, of a model and of what plans leave of it: measured, beside predictions.

A plan that was made from stats of ``calibrate --loss-aware`` predicts how the loss of each domain
changes. The right answers are read by the one loaded model, as it is and under each plan's mask.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from moeprune.core.answer_loss import DomainLoss
from moeprune.core.progress import OnProgress, Progress
from moeprune.errors import DomainError, StoppedError, UsageError
from moeprune.stages.answer_texts import AnswerTexts, answer_texts, check_any
from moeprune.stages.eval_model import AskedModel
from moeprune.stages.eval_tasks import Exam
from moeprune.stages.eval_variants import Variant, applied
from moeprune.stages.eval_words import EvalWords
from moeprune.stages.measuring import Stop
from moeprune.stages.together import Work

STAGE = "loss of answers"
# Task, domain -> nats and tokens of its answers.
Losses = dict[tuple[str, str], tuple[float, int]]


def predicted_of(variant: Variant, asked: AskedModel) -> Mapping[str, float]:
    """Domain -> change of the loss that the plan of a variant predicts; empty: it does not.

    Args:
        variant: of the model; its own plan, or the one that the model was exported by.
        asked: the model.
    """
    plan = variant.plan
    if plan is None and asked.export is not None:
        plan = asked.export.plan
    if plan is None or variant.policy is not None or asked.policy is not None:
        return {}
    return plan.without_stale().predicted


def wanted_texts(
    wanted: bool | None,
    variants: Sequence[Variant],
    asked: AskedModel,
    *,
    exam: Exam,
    words: EvalWords,
    tokenizer: Any,
    on_warning: Callable[[str], None] | None,
) -> AnswerTexts:
    """The answers whose loss is to be measured, none where that is not asked for.

    Args:
        wanted: by the user; None: where a plan predicts it.
        variants: of the model.
        asked: the model.
        exam: what is asked.
        words: of the user.
        tokenizer: of the model.
        on_warning: told why what nobody asked for by name cannot be measured.

    Raises:
        MoePruneError: it is asked for, and there are no answers or they cannot be read.
    """
    if wanted:
        found = answer_texts(exam, words, tokenizer)
        check_any(found)
        return found
    if wanted is False or not any(predicted_of(variant, asked) for variant in variants):
        return {}
    try:
        return answer_texts(exam, words, tokenizer)
    except (DomainError, UsageError) as problem:
        if on_warning is not None:
            on_warning(f"the loss that is predicted is not measured: {problem}")
        return {}


def asked_for(texts: AnswerTexts) -> dict[str, Any]:
    """What the measurement adds to that which decides an evaluation."""
    from moeprune.evaluate.requests import inputs_sha256

    if not texts:
        return {}
    return {"loss of answers": {name: inputs_sha256(own) for name, own in texts.items()}}


@dataclass(kw_only=True)
class Losing:
    """A measurement that is under way in one process.

    Attributes:
        live: the model.
        asked: its files.
        texts: the answers.
        batch_size: sequences of a forward pass; None: as many as usual.
        work: of this process.
        stop: asked after each batch.
        on_progress: told of the answers read.
    """

    live: Any
    asked: AskedModel
    texts: AnswerTexts
    batch_size: int | None
    work: Work
    stop: Stop
    on_progress: OnProgress
    _done: int = field(init=False, default=0)
    _total: int = field(init=False, default=0)

    def variants(self, variants: Sequence[Variant]) -> list[dict[str, Any]]:
        """What ``run.json`` says of each variant.

        Raises:
            StoppedError: ``stop`` said so.
            MoePruneError: the model fails on an answer.
        """
        whole = Variant(name=self.asked.name)
        masked = any(variant.plan is not None for variant in variants)
        due = [variant for variant in variants if variant.plan or variant.policy]
        bare = len(due) < len(variants) or masked
        self._total = (len(due) + bare) * sum(map(len, self.texts.values()))
        base = self._losses(whole) if bare else {}
        found = []
        for variant in variants:
            losses = self._losses(variant) if variant in due else base
            beside = base if variant.plan is not None else {}
            found.append(self._record(losses, beside, predicted_of(variant, self.asked)))
        return found

    def _record(
        self, losses: Losses, base: Losses, predicted: Mapping[str, float]
    ) -> dict[str, Any]:
        from moeprune.evaluate.requests import inputs_sha256

        body: dict[str, Any] = {
            task: {"inputs": inputs_sha256(requests), "domains": {}}
            for task, requests in self.texts.items()
        }
        for (task, domain), (nats, tokens) in losses.items():
            before = base.get((task, domain))
            body[task]["domains"][domain] = DomainLoss(
                task=task,
                domain=domain,
                tokens=tokens,
                nats=nats / tokens,
                base=None if before is None else before[0] / tokens,
                predicted=predicted.get(domain),
            ).to_json()
        return body

    def _losses(self, variant: Variant) -> Losses:
        """Of one variant, the same in every process, however many there are."""
        from moeprune.evaluate.answer_losses import answer_losses, loss_batches, num_tokens
        from moeprune.evaluate.batching import Room

        room = Room.of(self.batch_size)
        found: Losses = {}
        with applied(variant, self.live, self.asked):
            for task, requests in self.texts.items():
                numbered = loss_batches(self.live, requests, room)
                (share,) = self.work.shares([len(numbered)])
                how: dict[str, Any] = {"room": room, "numbered": numbered}
                nats_N = np.zeros(len(requests))
                own = answer_losses(self.live, requests, holds=share.holds, **how)
                for members, nats_M in own:
                    nats_N[members] = nats_M
                    self._report(len(members), variant)
                # Of every answer one process has the loss, and the others 0.
                nats_N = self.work.crew.added({"nats": nats_N}, maxima=frozenset())["nats"]
                for request, nats in zip(requests, nats_N.tolist(), strict=True):
                    key = task, request.question.domain
                    sum_nats, tokens = found.get(key, (0.0, 0))
                    found[key] = sum_nats + nats, tokens + num_tokens(request)
        return found

    def _report(self, done: int, variant: Variant) -> None:
        self._done += done
        self.on_progress(Progress(STAGE, self._done, self._total, "answers", variant.name))
        if self.stop():
            raise StoppedError(
                f"stopped while {variant.name} read the answers whose loss is measured; nothing "
                "of that is kept: the same command begins there again."
            )
