"""What a router does with its logits, in NumPy and from the words of a family's data file.

``weights``: ``"normalised"``: the scores of the chosen experts, divided by their sum; ``"scores"``:
as they are; ``"joint"``: divided by their sum and that of the shared experts' scores;
``"sparsemixer"``: PhiMoE's. ``scale`` multiplies them. ``bias``: what the selection
bias is added to, ``"scores"`` or ``"logits"``. ``groups``: ``[number, chosen, "sum" or "max"]``: a
group is worth the sum of its two best biased scores, or its best one. ``expert_scale``: true: each
weight is at last multiplied by its expert's own learned factor. ``skip``: a choice that has no
expert and no weight.

T tokens, E experts, K chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float64]


def scores_of(logits_TE: Array, *, gating: str) -> Array:
    if gating == "sigmoid":
        return 1 / (1 + np.exp(-logits_TE))
    if gating == "sqrtsoftplus":
        return np.sqrt(np.log1p(np.exp(logits_TE)))
    assert gating == "softmax", gating
    exp_TE = np.exp(logits_TE - logits_TE.max(axis=1, keepdims=True))
    return exp_TE / exp_TE.sum(axis=1, keepdims=True)


def probabilities_of(logits_TE: Array, *, gating: str) -> Array:
    scores_TE = scores_of(logits_TE, gating=gating)
    return scores_TE / scores_TE.sum(axis=1, keepdims=True)


def chosen_by(
    logits_TE: Array, bias_E: Array | None, *, rule: dict[str, Any], gating: str, top_k: int
) -> NDArray[np.int64]:
    """(T, K) the experts that the rule chooses, ids ascending."""
    base_TE = scores_of(logits_TE, gating=gating)
    if rule.get("bias") == "logits":
        base_TE = logits_TE
    if bias_E is not None:
        base_TE = base_TE + bias_E
    if "groups" in rule:
        number, best, worth = rule["groups"]
        base_TGE = base_TE.reshape(len(base_TE), number, -1)
        ranked_TGE = np.sort(base_TGE, axis=2)
        worth_TG = ranked_TGE[:, :, -1] if worth == "max" else ranked_TGE[:, :, -2:].sum(axis=2)
        out_TG = np.argsort(-worth_TG, axis=1)[:, best:]
        base_TGE = base_TGE.copy()
        np.put_along_axis(base_TGE, out_TG[:, :, None], -np.inf, axis=1)
        base_TE = base_TGE.reshape(base_TE.shape)
    return np.sort(np.argsort(-base_TE, axis=1)[:, :top_k], axis=1)


def weights_by(
    logits_TE: Array,
    ids_TK: NDArray[np.int64],
    *,
    rule: dict[str, Any],
    gating: str,
    shared_TS: Array | None = None,
) -> Array:
    """(T, K) the weights of the chosen experts, from the router probabilities of all experts."""
    probs_TE = probabilities_of(logits_TE, gating=gating)
    if rule["weights"] == "sparsemixer":
        return _sparsemixer(logits_TE, probs_TE, ids_TK)
    weights_TK = np.take_along_axis(probs_TE, ids_TK, axis=1)
    if rule["weights"] == "normalised":
        weights_TK = weights_TK / weights_TK.sum(axis=1, keepdims=True)
    elif rule["weights"] == "joint":
        assert shared_TS is not None
        scores_TK = np.take_along_axis(scores_of(logits_TE, gating=gating), ids_TK, axis=1)
        shared_T1 = scores_of(shared_TS, gating=gating).sum(axis=1, keepdims=True)
        weights_TK = scores_TK / (scores_TK.sum(axis=1, keepdims=True) + shared_T1)
    else:
        assert rule["weights"] == "scores", rule
        weights_TK = weights_TK * scores_of(logits_TE, gating=gating).sum(axis=1, keepdims=True)
    if "skip" in rule:
        weights_TK = np.where(ids_TK == rule["skip"], 0, weights_TK)
    return weights_TK * float(rule.get("scale", 1.0))


def policy_by(
    logits_TE: Array,
    bias_E: Array | None,
    *,
    rule: dict[str, Any],
    gating: str,
    k1: int,
    k2: int,
    num_experts: int,
    shared_TS: Array | None = None,
) -> tuple[NDArray[np.int64], Array]:
    """(T, k₁) experts, ids ascending, and their weights: scores over the sum of the top k₂ scores.

    Of a family that leaves scores as they are, k₂ from ``num_experts`` on does so too.
    """
    scores_TE = scores_of(logits_TE, gating=gating)
    options = {"rule": rule, "gating": gating}
    ids_TK = chosen_by(logits_TE, bias_E, top_k=k1, **options)
    weights_TK = np.take_along_axis(scores_TE, ids_TK, axis=1)
    if k2 >= num_experts:
        below_T1 = scores_TE.sum(axis=1, keepdims=True)
    else:
        ranked_TK = chosen_by(logits_TE, bias_E, top_k=k2, **options)
        below_T1 = np.take_along_axis(scores_TE, ranked_TK, axis=1).sum(axis=1, keepdims=True)
    if rule["weights"] == "joint":
        assert shared_TS is not None
        below_T1 = below_T1 + scores_of(shared_TS, gating=gating).sum(axis=1, keepdims=True)
    if rule["weights"] != "scores" or k2 < num_experts:
        weights_TK = weights_TK / below_T1
    return ids_TK, weights_TK * float(rule.get("scale", 1.0))


def _sparsemixer(
    logits_TE: Array, probs_TE: Array, ids_TK: NDArray[np.int64], *, jitter: float = 0.01
) -> Array:
    """One expert after the other; each one's rivals are those within a relative margin of it."""
    weights_TK = np.zeros(ids_TK.shape)
    for token, ids in enumerate(ids_TK):
        left = logits_TE[token].copy()
        for place, expert in enumerate(ids):
            margin = (left[expert] - left) / np.maximum(np.abs(logits_TE[token]), left[expert])
            rivals = np.isfinite(left) & (margin <= 2 * jitter)
            weights_TK[token, place] = probs_TE[token, expert] / probs_TE[token, rivals].sum()
            left[expert] = -np.inf
    return weights_TK
