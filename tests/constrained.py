"""Random models with constraints, and what every choice of experts under them must hold."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import strategies as st
from synthetic import facts

from moeprune.core.budget import Budget
from moeprune.core.choice import real_LE
from moeprune.core.constraints import Constraints
from moeprune.core.facts import ModelFacts
from moeprune.core.limits import limits


@st.composite
def models(draw: st.DrawFn) -> ModelFacts:
    """Ragged or even layers, with and without router groups, experts of any size."""
    groups = draw(st.sampled_from([1, 1, 2, 4]))
    rows = draw(st.integers(1, 4))
    if draw(st.booleans()):
        experts = [groups * draw(st.integers(2, 9))] * rows
    else:
        experts = [groups * draw(st.integers(2, 9)) for _ in range(rows)]
    top_groups = max(1, groups // 2)
    top_k = draw(st.integers(1, min(4, min(experts) // groups * top_groups)))
    ids = sorted(draw(st.sets(st.integers(0, 9), min_size=rows, max_size=rows)))
    model = facts(experts, top_k=top_k, groups=groups, top_groups=top_groups, layer_ids=ids)
    sizes = tuple(draw(st.sampled_from([100, 100, 37, 400])) for _ in experts)
    if draw(st.booleans()):
        sizes = (sizes[0],) * rows
    total = 1000 + sum(n * size for n, size in zip(experts, sizes, strict=True))
    return replace(model, expert_bytes=sizes, total_bytes=total)


@st.composite
def constraints(draw: st.DrawFn, model: ModelFacts) -> Constraints:
    """Some layers whole, some with a count of their own, some experts protected."""
    kinds = [draw(st.sampled_from(["free", "free", "whole", "own"])) for _ in model.layer_ids]
    whole = [layer for layer, kind in zip(model.layer_ids, kinds, strict=True) if kind == "whole"]
    own = {
        layer: draw(st.integers(1, count))
        for layer, count, kind in zip(model.layer_ids, model.num_experts, kinds, strict=True)
        if kind == "own"
    }
    protected = [
        sorted(draw(st.sets(st.integers(0, count - 1), max_size=draw(st.integers(0, 3)))))
        for count in model.num_experts
    ]
    return Constraints.of(model, keep_layers=whole, layer_keep=own, protected=[protected])


def check_choice(
    keep_LE: np.ndarray, model: ModelFacts, asked: Constraints, budget: Budget, *, multiple_of: int
) -> None:
    """Every promise of the budget and the constraints, counted anew from the choice itself."""
    limit = limits(model, multiple_of=multiple_of)
    assert not keep_LE[~real_LE(model.num_experts)].any()
    removed = sum(model.num_experts) - int(keep_LE.sum())
    if budget.allocation == "uniform" or all(n % limit.unit == 0 for n in model.num_experts):
        assert removed == budget.remove_total
    else:
        assert budget.remove_total - limit.unit < removed <= budget.remove_total
    for row, (layer, count) in enumerate(zip(model.layer_ids, model.num_experts, strict=True)):
        kept_E = keep_LE[row, :count]
        if asked.protected:
            assert kept_E[list(asked.protected[row])].all()
        if layer in asked.layer_keep:
            assert kept_E.sum() == asked.layer_keep[layer]
        if kept_E.all():
            continue
        assert kept_E.sum() >= max(model.top_k, limit.min_keep)
        assert kept_E.sum() % limit.unit == 0
        kept_G = kept_E.reshape(model.num_groups, -1).sum(axis=1)
        assert len(set(kept_G.tolist())) == 1
        assert kept_G[0] * model.top_groups >= model.top_k
