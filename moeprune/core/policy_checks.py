"""Whether a model can run what a routing policy asks for.

L MoE layers, E routed experts of a layer.
"""

from __future__ import annotations

from collections.abc import Sequence

from moeprune.core.layout import MoeLayout
from moeprune.core.policy import RoutingPolicy
from moeprune.core.rows import row_name
from moeprune.errors import UnsupportedModelError, UsageError


def check_policy(
    policy: RoutingPolicy, layout: MoeLayout, keep: Sequence[Sequence[int]] | None = None
) -> None:
    """Check that every router of a model can follow ``policy``.

    Args:
        policy: what they are to do.
        layout: of the model.
        keep: (L,) ids of the experts that a plan leaves; None: all.

    Raises:
        UsageError: it runs more experts than there are, or ranks ones that a group-limited router
            does not rank, or has gains for another number of layers.
        UnsupportedModelError: the routers of this family run no other number of experts.
    """
    if layout.fixed_routing:
        raise UnsupportedModelError(
            f"--k1 and --k2 do not fit family {layout.model_type}: {layout.fixed_routing}. Leave "
            "them out."
        )
    if policy.k1 < layout.least_top_k:
        raise UsageError(
            f"--k1 {policy.k1} is too few: transformers' experts of family {layout.model_type} "
            f"fail on it. Give {layout.least_top_k} at least."
        )
    if len(policy.gains) not in (1, len(layout.layer_ids)):
        raise UsageError(
            f"--gain has {len(policy.gains)} numbers, the model {len(layout.layer_ids)} MoE "
            "layers. Give one number, or one for each."
        )
    for row, (where, count) in enumerate(zip(layout.rows, layout.num_experts, strict=True)):
        ids = range(count) if keep is None else keep[row]
        ranked = rankable(layout, count, ids)
        if policy.k1 > ranked:
            has = f"{len(ids)} experts"
            if ranked < len(ids):
                has += f", of which a token chooses from {ranked} (router groups)"
            raise UsageError(
                f"--k1 {policy.k1} is too many: {row_name(*where)} has {has}. Give at most "
                f"{ranked}."
            )
        if ranked < policy.k2 < len(ids):
            raise UsageError(
                f"--k2 {policy.k2} means nothing in {row_name(*where)}: a token's router groups "
                f"hold {ranked} experts, and the other {len(ids) - ranked} have no rank. Give at "
                f"most {ranked}, or {len(ids)} for all."
            )


def rankable(layout: MoeLayout, count: int, ids: Sequence[int]) -> int:
    """Experts that every token can choose from, whichever groups its router takes.

    Args:
        layout: of the model.
        count: experts of the layer.
        ids: those that stay.
    """
    groups = layout.num_groups
    if groups == 1:
        return len(ids)
    held = [0] * groups
    for expert in ids:
        held[expert * groups // count] += 1
    return sum(sorted(held)[: layout.top_groups])
