"""k₁ and k₂ of an export: what can be written, and what would not be what was asked for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from moeprune.architectures import family_names
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.own_code import check_plain_code
from moeprune.core.layout import MoeLayout
from moeprune.core.policy import RoutingPolicy
from moeprune.core.policy_checks import check_policy
from moeprune.core.policy_words import PolicyWords
from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.stages.forms import PADDED


def policy_of(
    words: PolicyWords,
    form: str,
    index: CheckpointIndex,
    layout: MoeLayout,
    keep: Sequence[Sequence[int]],
) -> RoutingPolicy | None:
    """What the routers of an export do; None: what those of its source do.

    Args:
        words: k₁ and k₂ as they were asked for.
        form: of the export, one of ``forms.FORMS``.
        index: the source.
        layout: of the source.
        keep: L sequences of the ids that stay.

    Raises:
        UsageError: one of k₁ and k₂ is missing, or they are what the source does anyway, or no
            router of the export can take them.
        UnsupportedModelError: the routers of this family run no other number of experts, or the
            model has code of its own.
    """
    if not words.given:
        return None
    native = layout.native_policy
    policy = words.policy(native=native, experts=max(layout.num_experts))
    check_policy(policy, layout, keep=keep)
    least, most = min(map(len, keep)), max(map(len, keep))
    if policy.k1 == native.k1 and min(policy.k2, most) == min(native.k2, most):
        raise UsageError(
            f"--k1 {policy.k1} --k2 {words.k2} is how {layout.model_type} routes by itself, which "
            "needs no code. Leave both out."
        )
    check_plain_code(index.config, option="--k1 --k2")
    if layout.model_type not in family_names():
        raise UnsupportedModelError(
            f"--k1 --k2 are tested family by family, and {layout.model_type} is not among them: "
            "its router may not be what its code seems to say."
        )
    ranked = min(policy.k2, most)
    # A layer of all its experts' raw weights would count them as ranks when it is filled up.
    limit = least if layout.renormalises else least - 1
    if form == PADDED and ranked > limit and (layout.renormalises or ranked < most):
        raise UsageError(
            f"--k2 {words.k2} would count padding: with --pad, a layer that keeps {least} experts "
            f"is filled up to {most}. Give at most {limit}, or --per-layer in place of --pad."
        )
    return replace(policy, k2=ranked)  # all experts of the export, and no number of the source's
