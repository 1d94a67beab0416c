"""The self-check of k₁ and k₂ before anything is asked: policies act on this model."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moeprune.stages.eval_model import AskedModel
from moeprune.stages.eval_variants import Variant, applied
from moeprune.stages.forward import PROMPTS
from moeprune.stages.policies import self_check

_TOKENS = 48


def check_variants(
    live: Any, asked: AskedModel, variants: Sequence[Variant], tokenizer: Any
) -> None:
    """Check each plan, and the whole model, that a variant puts a policy on.

    Args:
        live: the loaded model.
        asked: it.
        variants: what will be asked; without a policy nothing is run.
        tokenizer: of the model.

    Raises:
        VerificationError: a policy does not act; the message says what was not reached.
    """
    plans = []
    for variant in variants:
        if variant.policy is not None and variant.plan not in plans:
            plans.append(variant.plan)
    if not plans:
        return
    ids = [token for text in PROMPTS for token in tokenizer(text)["input_ids"]][:_TOKENS]
    for plan in plans:
        with applied(Variant(name="", plan=plan), live, asked):
            self_check(live, asked.routed, ids, None if plan is None else plan.keep)
