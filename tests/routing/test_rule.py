"""The rule against a transcription of w = p[:k₁] / Σ p[:k₂], for routers of every kind."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from hypothesis import given
from hypothesis import strategies as st

from moeprune.routing.rule import keeps_order, own_scale, reroute


class Router(torch.nn.Module):
    """Scores, a bias that moves the choice, a factor; in the order of choice, or turned round."""

    def __init__(self, scores_TE: Any, bias_E: Any, *, norm: bool, scale: float, turn: bool):
        super().__init__()
        self.scores, self.bias, self.norm = torch.tensor(scores_TE), torch.tensor(bias_E), norm
        self.routed_scaling_factor, self.turn = scale, turn

    def forward(self, k: int) -> tuple[torch.Tensor, ...]:
        ids = (self.scores + self.bias).topk(k, dim=-1).indices
        ids = ids.flip(-1) if self.turn else ids
        weights = self.scores.gather(-1, ids)
        if self.norm:
            weights = weights / weights.sum(-1, keepdim=True)
        return self.scores, weights * self.routed_scaling_factor, ids, torch.tensor(k)


@st.composite
def cases(draw: st.DrawFn) -> dict[str, Any]:
    experts = draw(st.integers(1, 9))
    draws = np.random.RandomState(draw(st.integers(0, 2**32 - 1)))
    norm = draw(st.booleans())
    return {
        "scores": draws.uniform(0.01, 1, (draw(st.integers(1, 4)), experts)).astype(np.float32),
        "bias": draws.normal(0, draw(st.sampled_from([0.0, 1.0])), experts).astype(np.float32),
        "norm": norm,
        "scale": draw(st.sampled_from([1.0, 2.5])),
        "turn": draw(st.booleans()),
        "k1": draw(st.integers(1, experts)),
        "k2": draw(st.integers(1, experts)),
        "all": not norm and draw(st.booleans()),
    }


@given(case=cases())
def test_it_is_the_formula(case: dict[str, Any]) -> None:
    scores, bias, k1, k2 = case["scores"].astype(np.float64), case["bias"], case["k1"], case["k2"]
    router = Router(case["scores"], bias, norm=case["norm"], scale=case["scale"], turn=case["turn"])
    _, weights, ids, more = reroute(
        router,
        k1=k1,
        k2=None if case["all"] else k2,
        renormalises=case["norm"],
        in_order=not case["turn"],
        scale=own_scale(router),
    )
    order = np.argsort(-(case["scores"] + bias), axis=1, kind="stable")
    for token, (row, chosen) in enumerate(zip(weights.tolist(), ids.tolist(), strict=True)):
        assert sorted(chosen) == sorted(order[token, :k1])
        below = 1.0 if case["all"] else scores[token, order[token, :k2]].sum()
        np.testing.assert_allclose(
            row, case["scale"] * scores[token, chosen] / below, rtol=1e-5, atol=1e-7
        )
    # Whatever else a router returns goes by the denominator, where there is one.
    assert int(more) == (k2 if case["norm"] else k1)


@given(case=cases())
def test_the_native_pair_is_the_native_call(case: dict[str, Any]) -> None:
    router = Router(
        case["scores"], case["bias"], norm=case["norm"], scale=case["scale"], turn=case["turn"]
    )
    k = case["k1"]
    found = reroute(
        router,
        k1=k,
        k2=k if case["norm"] else None,
        renormalises=case["norm"],
        in_order=not case["turn"],
    )
    for have, want in zip(found, router(k), strict=True):
        assert torch.equal(have, want)


def test_order_is_only_believed_where_it_is_seen() -> None:
    class Sorted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.topk(2).indices

    class Unsorted(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return x.topk(2, sorted=False).indices

    class Elsewhere(torch.nn.Module):
        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.choice(x)

        def choice(self, x: torch.Tensor) -> torch.Tensor:
            return x.topk(2).indices

    assert keeps_order(Sorted) and not keeps_order(Unsorted) and not keeps_order(Elsewhere)
    assert keeps_order(Elsewhere, "choice")
    assert not keeps_order(type("Made", (), {"forward": len}))
