"""Random statistics that add up, for tests that need no model."""

from collections.abc import Sequence
from typing import Any

import numpy as np

from moeprune.core.facts import ModelFacts
from moeprune.core.stats import FIELDS, FOLDS, LOSS_FIELDS, CalibrationStats, DomainStats


def facts(
    experts: Sequence[int] = (8, 8),
    *,
    top_k: int = 2,
    groups: int = 1,
    top_groups: int = 1,
    layer_ids: Sequence[int] | None = None,
) -> ModelFacts:
    """A model without tensors."""
    return ModelFacts(
        name="org/model",
        fingerprint="5eed" * 16,
        model_type="made_up",
        layer_ids=tuple(range(len(experts))) if layer_ids is None else tuple(layer_ids),
        num_experts=tuple(experts),
        top_k=top_k,
        num_groups=groups,
        top_groups=top_groups,
        gating="softmax",
        total_bytes=10_000 + 100 * sum(experts),
        expert_bytes=tuple(100 for _ in experts),
    )


def domain_arrays(
    model: ModelFacts, tokens_F: Sequence[int], rng: np.random.Generator, *, skew: float = 1.0
) -> dict[str, Any]:
    """Sums over random router distributions of ``tokens_F`` tokens, routed to the top k.

    Gate weights are the chosen probabilities scaled up to sum to 1.
    """
    rows, width = model.num_layers, model.width
    shape = {"L": rows, "E": width}
    arrays = {
        name: np.zeros((FOLDS, *(shape[axis] for axis in axes)), dtype)
        for name, (axes, dtype, _) in FIELDS.items()
    }
    for row, experts in enumerate(model.num_experts):
        taste_E = rng.normal(size=experts) * skew
        for fold, tokens in enumerate(tokens_F):
            arrays["tokens"][fold, row] = tokens
            for _ in range(tokens):
                logits_E = taste_E + rng.normal(size=experts)
                prob_E = np.exp(logits_E) / np.exp(logits_E).sum()
                top = np.argsort(-prob_E)[: model.top_k]
                gate_K = prob_E[top] / prob_E[top].sum()
                norm_E = rng.uniform(0.5, 2.0, size=experts)
                at = (fold, row, top)
                arrays["prob_sum"][fold, row, :experts] += prob_E
                arrays["rank_prob_sum"][fold, row, :experts] += np.sort(prob_E)[::-1]
                entropy = -(prob_E * np.log2(prob_E)).sum()
                arrays["entropy_sum"][fold, row] += entropy
                arrays["entropy_sq_sum"][fold, row] += entropy**2
                arrays["count"][at] += 1
                arrays["gate_sum"][at] += gate_K
                arrays["norm_sum"][at] += norm_E[top]
                arrays["norm_sq_sum"][at] += norm_E[top] ** 2
                arrays["gate_norm_sum"][at] += gate_K * norm_E[top]
                arrays["gate_norm_sq_sum"][at] += (gate_K * norm_E[top]) ** 2
                arrays["prob_norm_sum"][at] += prob_E[top] * norm_E[top]
                arrays["norm_max"][at] = np.maximum(arrays["norm_max"][at], norm_E[top])
    return arrays


def loss_arrays(
    model: ModelFacts, arrays: dict[str, Any], rng: np.random.Generator, *, documents: int = 3
) -> dict[str, Any]:
    """Sums of a loss that fit ``arrays``: random changes of each token that an expert was given.

    Tokens are spread over ``documents`` of each fold.
    """
    shape = {"L": model.num_layers, "E": model.width}
    made = {
        name: np.zeros((FOLDS, *(shape[axis] for axis in axes)), dtype)
        for name, (axes, dtype, _) in LOSS_FIELDS.items()
    }
    made["loss_tokens"][:] = np.maximum(arrays["tokens"][:, 0] - 1, 0)
    made["loss_sum"][:] = made["loss_tokens"] * rng.uniform(1, 2, size=FOLDS)
    worth_LE = rng.uniform(0.1, 1.0, size=(model.num_layers, model.width))
    for fold, row, expert in np.argwhere(arrays["count"]):
        if not made["loss_tokens"][fold]:
            continue
        size = (2, arrays["count"][fold, row, expert])
        drop_T, cf_T = rng.normal(size=size) * worth_LE[row, expert]
        place_T = rng.integers(0, documents, size=size[1])
        drop_D, cf_D = (np.bincount(place_T, weights=each) for each in (drop_T, cf_T))
        for name, value in {
            "fisher_sum": (drop_T**2).sum(),
            "fisher_cf_sum": (cf_T**2).sum(),
            "abs_cf_sum": np.abs(cf_T).sum(),
            "drop_change_sum": drop_T.sum(),
            "drop_change_sq_sum": (drop_D**2).sum(),
            "cf_change_sum": cf_T.sum(),
            "cf_change_sq_sum": (cf_D**2).sum(),
            "cf_change_abs_sum": np.abs(cf_D).sum(),
        }.items():
            made[name][fold, row, expert] = value
    return made


def stats(
    model: ModelFacts | None = None,
    *,
    domains: Sequence[str] = ("math", "code", "prose"),
    tokens_F: Sequence[int] = (6, 5, 7, 4),
    seed: int = 0,
    skew: float = 1.0,
    loss: bool = False,
) -> CalibrationStats:
    """Checked statistics of several domains with tastes of their own; ``loss``: and of a loss."""
    model = facts() if model is None else model
    rng = np.random.default_rng(seed)

    def arrays_of(place: int) -> dict[str, Any]:
        arrays = domain_arrays(model, tokens_F, rng, skew=skew)
        own = np.random.default_rng([seed, place])  # the other sums are the same with a loss
        return {**arrays, **loss_arrays(model, arrays, own)} if loss else arrays

    made = CalibrationStats(
        model=model,
        domains=tuple(
            DomainStats(
                name=name,
                source=f"builtin:{name}",
                corpus_sha256="c0" * 32,
                documents=FOLDS * 3 if loss else FOLDS,
                arrays=arrays_of(place),
            )
            for place, name in enumerate(domains)
        ),
        provenance={"mode": "prefill", "seed": seed, **({"loss": "all"} if loss else {})},
    )
    made.check_counts()
    return made
