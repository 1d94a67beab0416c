"""What calibration must find of watched texts, summed by the definitions in words.

T tokens, E experts, K chosen.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from forward_reference import Watched
from numpy.typing import NDArray
from router_reference import probabilities_of

FOLDS = 4


def block_scale(watched: Watched, *, on_input: bool) -> float:
    """The factor between the weighted sum of the experts' outputs and what the block adds."""
    weights_TK1 = 1.0 if on_input else watched.weights_TK[:, :, None]
    sum_TH = (weights_TK1 * watched.outputs_TKH).sum(dim=1)
    if not watched.weights_TK.any():  # every token skips the experts
        assert not watched.added_TH.any()
        return 1.0
    assert sum_TH.abs().max() > 1e-3
    scale = float((watched.added_TH * sum_TH).sum() / sum_TH.square().sum())
    torch.testing.assert_close(watched.added_TH, scale * sum_TH, rtol=1e-3, atol=1e-5)
    return scale


def slow_sums(
    texts: list[list[list[Watched]]], *, gating: str, num_experts: int, on_input: bool
) -> dict[str, NDArray[Any]]:
    """Every field of a domain's stats, by the definitions in words."""
    layers = 1 + max(watched.row for layer in texts[0] for watched in layer)
    wide = (FOLDS, layers, num_experts)
    per_expert = "count prob_sum gate_sum norm_sum norm_sq_sum gate_norm_sum gate_norm_sq_sum"
    per_expert += " prob_norm_sum norm_max rank_prob_sum"
    sums = {name: np.zeros(wide) for name in per_expert.split()}
    sums |= {name: np.zeros(wide[:2]) for name in ("tokens", "entropy_sum", "entropy_sq_sum")}
    for number, text in enumerate(texts):
        for watched in [watched for layer in text for watched in layer]:
            at = (number % FOLDS, watched.row)
            gates_TK = (watched.weights_TK * block_scale(watched, on_input=on_input)).abs().numpy()
            norms_TK = watched.outputs_TKH.norm(dim=-1).numpy()
            probs_TE = probabilities_of(watched.logits_TE.numpy(), gating=gating)
            entropy_T = -(probs_TE * np.log2(probs_TE)).sum(axis=1)
            sums["tokens"][at] += len(probs_TE)
            sums["entropy_sum"][at] += entropy_T.sum()
            sums["entropy_sq_sum"][at] += (entropy_T**2).sum()
            probs_TE = probs_TE[:, :num_experts]  # of the routed ones: what follows is idle
            sums["prob_sum"][at] += probs_TE.sum(axis=0)
            sums["rank_prob_sum"][at] += np.sort(probs_TE, axis=1)[:, ::-1].sum(axis=0)
            for token, ids in enumerate(watched.ids_TK.tolist()):
                for place, expert in enumerate(ids):
                    if expert >= num_experts:
                        continue
                    gate, norm = gates_TK[token, place], norms_TK[token, place]
                    weighted = norm if on_input else gate * norm
                    where = (*at, expert)
                    sums["count"][where] += 1
                    sums["gate_sum"][where] += gate
                    sums["norm_sum"][where] += norm
                    sums["norm_sq_sum"][where] += norm**2
                    sums["gate_norm_sum"][where] += weighted
                    sums["gate_norm_sq_sum"][where] += weighted**2
                    sums["prob_norm_sum"][where] += probs_TE[token, expert] * norm
                    sums["norm_max"][where] = max(sums["norm_max"][where], norm)
    return sums
