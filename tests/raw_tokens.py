"""Made-up tokens of every layer, and their sums: what a criterion is, token by token."""

from dataclasses import dataclass, field

import numpy as np

from moeprune.core.domain_stats import fields
from moeprune.core.facts import ModelFacts
from moeprune.core.stats import FOLDS, CalibrationStats, DomainStats


@dataclass(frozen=True)
class Visit:
    """One pass of one token through one MoE layer.

    Attributes:
        fold: of its document.
        row: the MoE layer.
        prob: router probability of each expert of the layer.
        gate: gate weight of each expert that runs.
        norm: output norm of each expert that runs.
    """

    fold: int
    row: int
    prob: list[float]
    gate: dict[int, float]
    norm: dict[int, float] = field(default_factory=dict)


def visits(
    model: ModelFacts,
    tokens: int,
    rng: np.random.Generator,
    *,
    never: frozenset[int] = frozenset(),
    skew: float = 1.0,
) -> list[Visit]:
    """Random visits; experts in ``never`` are not routed to, whatever their probability."""
    made = []
    passes = model.passes or (1,) * model.num_layers
    taste = [skew * rng.normal(size=count) for count in model.num_experts]
    for token in range(tokens):
        for row, count in enumerate(model.num_experts):
            for _ in range(passes[row]):
                score_E = np.exp(taste[row] + rng.normal(size=count))
                prob_E = score_E / score_E.sum()
                order = [int(e) for e in np.argsort(-prob_E) if int(e) not in never]
                top = order[: model.top_k]
                made.append(
                    Visit(
                        fold=token % FOLDS,
                        row=row,
                        prob=prob_E.tolist(),
                        gate={e: float(rng.uniform(0.1, 2)) for e in top},
                        norm={e: float(rng.uniform(0.1, 5)) for e in top},
                    )
                )
    return made


def changes(visit: Visit, expert: int) -> tuple[float, float]:
    """What the loss makes of leaving out an expert: without another in its place, and with one."""
    drop = visit.gate[expert] * visit.norm[expert] * float(np.sin(97 * visit.gate[expert]))
    return drop, drop * float(np.cos(89 * visit.gate[expert]))


def domain(name: str, model: ModelFacts, seen: list[Visit], *, loss: bool = False) -> DomainStats:
    """The stats of visits, summed as docs/formats.md states the fields.

    ``loss``: also those of a loss of all tokens, a document a fold.
    """
    shape = {"L": model.num_layers, "E": model.width}
    arrays = {
        key: np.zeros((FOLDS, *(shape[axis] for axis in axes)), dtype)
        for key, (axes, dtype, _) in fields(loss=loss).items()
    }
    for visit in seen:
        at = (visit.fold, visit.row)
        prob_E = np.array(visit.prob)
        entropy = -(prob_E * np.log2(prob_E)).sum()
        arrays["tokens"][at] += 1
        arrays["entropy_sum"][at] += entropy
        arrays["entropy_sq_sum"][at] += entropy**2
        arrays["prob_sum"][at][: prob_E.size] += prob_E
        arrays["rank_prob_sum"][at][: prob_E.size] += np.sort(prob_E)[::-1]
        for expert, gate in visit.gate.items():
            norm, here = visit.norm[expert], (*at, expert)
            arrays["count"][here] += 1
            arrays["gate_sum"][here] += gate
            arrays["norm_sum"][here] += norm
            arrays["norm_sq_sum"][here] += norm**2
            arrays["gate_norm_sum"][here] += gate * norm
            arrays["gate_norm_sq_sum"][here] += (gate * norm) ** 2
            arrays["prob_norm_sum"][here] += prob_E[expert] * norm
            arrays["norm_max"][here] = max(arrays["norm_max"][here], norm)
            if loss:
                drop, cf = changes(visit, expert)
                for key, value in {
                    "fisher_sum": drop**2,
                    "fisher_cf_sum": cf**2,
                    "abs_cf_sum": abs(cf),
                    "drop_change_sum": drop,
                    "cf_change_sum": cf,
                }.items():
                    arrays[key][here] += value
    if loss:
        arrays["drop_change_sq_sum"] = arrays["drop_change_sum"] ** 2
        arrays["cf_change_sq_sum"] = arrays["cf_change_sum"] ** 2
        arrays["cf_change_abs_sum"] = np.abs(arrays["cf_change_sum"])
        arrays["loss_tokens"] = arrays["tokens"][:, 0] // (model.passes or (1,))[0]
        arrays["loss_sum"] = 1.5 * arrays["loss_tokens"]
    return DomainStats(
        name=name, source="text", corpus_sha256="c0" * 32, documents=FOLDS, arrays=arrays
    )


def stats(
    model: ModelFacts, seen: dict[str, list[Visit]], *, loss: bool = False
) -> CalibrationStats:
    """Checked stats of several domains; ``loss``: and of a loss."""
    made = CalibrationStats(
        model=model,
        domains=tuple(domain(name, model, each, loss=loss) for name, each in seen.items()),
        provenance={"mode": "prefill", **({"loss": "all"} if loss else {})},
    )
    made.check_counts()
    return made
