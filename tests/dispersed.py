"""Statistics made from matrices: drawn models with a router mass and a REAP that one chooses."""

from collections.abc import Sequence

import numpy as np
from synthetic import facts

from moeprune.core.facts import ModelFacts
from moeprune.core.stats import FIELDS, FOLDS, CalibrationStats, DomainStats


def softmax(logits: np.ndarray) -> np.ndarray:
    """Over the last axis."""
    weights = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return weights / weights.sum(axis=-1, keepdims=True)


def drawn(
    seed: int,
    *,
    model: ModelFacts | None = None,
    domains: int = 6,
    common: float = 0.2,
    own: float = 0.1,
    noise: float = 0.005,
    norms_follow_mass: float = 1.0,
    norm_spread: float = 0.3,
    entropy: float = 0.93,
    tokens: int = 2000,
) -> CalibrationStats:
    """A model of 24 x 32 experts, top-4, or another.

    Args:
        seed: of the draw.
        model: another model.
        domains: how many.
        common: spread of the log mass that all domains share.
        own: spread of each domain's own; the last domain's is twice that.
        noise: spread of each fold's own: what other text would change.
        norms_follow_mass: correlation of log REAP with the log of the common mass.
        norm_spread: spread of log REAP.
        entropy: router entropy over its maximum.
        tokens: of each domain in each fold.
    """
    model = facts([32] * 24, top_k=4) if model is None else model
    draw = np.random.RandomState(seed)
    layers, width = model.num_layers, model.width
    common_LE = draw.standard_normal((layers, width))
    own_DLE = draw.standard_normal((domains, layers, width)) * own
    own_DLE[-1] *= 2
    noise_DFLE = draw.standard_normal((domains, FOLDS, layers, width)) * noise
    independent = np.sqrt(1 - norms_follow_mass**2) * draw.standard_normal((layers, width))
    reap_LE = np.exp(norm_spread * (norms_follow_mass * common_LE + independent))
    mass_DFLE = softmax(common * common_LE + own_DLE[:, None] + noise_DFLE)
    names = ["math", "code", "commonsense", "science", "instruction", "knowledge"]
    return stats_of(
        model, names[:domains], mass_DFLE, reap_LE=reap_LE, entropy=entropy, tokens=tokens
    )


def stats_of(
    model: ModelFacts,
    names: Sequence[str],
    mass_DFLE: np.ndarray,
    *,
    reap_LE: np.ndarray,
    entropy: float = 0.93,
    tokens: int = 2000,
    empty_folds: Sequence[int] = (),
) -> CalibrationStats:
    """Checked stats with these masses (rows of any sum) and this REAP."""
    domains = []
    for name, mass_FLE in zip(names, mass_DFLE, strict=True):
        arrays = {
            field: np.zeros(
                (FOLDS, *({"L": model.num_layers, "E": model.width}[axis] for axis in axes)), dtype
            )
            for field, (axes, dtype, _) in FIELDS.items()
        }
        for row, experts in enumerate(model.num_experts):
            bits = entropy * np.log2(experts)
            for fold in range(FOLDS):
                if fold in empty_folds:
                    continue
                mass_E = mass_FLE[fold, row, :experts] / mass_FLE[fold, row, :experts].sum()
                count_E = shares(mass_E, model.top_k * tokens, most=tokens)
                at = (fold, row, slice(0, experts))
                arrays["tokens"][fold, row] = tokens
                arrays["prob_sum"][at] = mass_E * tokens
                arrays["count"][at] = count_E
                arrays["gate_sum"][at] = count_E * mass_E
                arrays["gate_norm_sum"][at] = count_E * reap_LE[row, :experts]
                arrays["norm_sum"][at] = count_E * reap_LE[row, :experts] / mass_E
                arrays["rank_prob_sum"][at] = np.sort(mass_E)[::-1] * tokens
                arrays["entropy_sum"][fold, row] = bits * tokens
                arrays["entropy_sq_sum"][fold, row] = bits**2 * tokens * 1.01
        domains.append(
            DomainStats(
                name=name,
                source=f"builtin:{name}",
                corpus_sha256="c0" * 32,
                documents=FOLDS,
                arrays=arrays,
            )
        )
    made = CalibrationStats(model=model, domains=tuple(domains), provenance={"mode": "prefill"})
    made.check_counts()
    return made


def shares(mass_E: np.ndarray, total: int, *, most: int) -> np.ndarray:
    """Whole numbers in proportion to ``mass_E`` that sum to ``total``, none above ``most``."""
    count_E = np.minimum(np.floor(mass_E * total).astype(np.int64), most)
    for expert in np.argsort(-mass_E, kind="stable"):
        more = min(total - int(count_E.sum()), most - int(count_E[expert]))
        count_E[expert] += max(0, min(more, 1 + total // 1000))
    for expert in np.argsort(-mass_E, kind="stable"):
        count_E[expert] += min(total - int(count_E.sum()), most - int(count_E[expert]))
    return count_E
