"""k₁ and k₂ on routers as vLLM builds them, against a transcription of the paper's formula."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from moeprune.errors import UnsupportedModelError
from moeprune.routing.vllm_block import ServedBlock
from moeprune.routing.vllm_routers import BUILDING, Building, router_factory

E, GROUPS, CHOSEN = 12, 3, 2


@dataclass
class Router:
    """Scores, groups, a bias for the choice, a factor: whatever a router of vLLM has."""

    top_k: int
    given: dict[str, Any]

    def _compute_routing(
        self, hidden: torch.Tensor, logits: torch.Tensor, indices_type: Any
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.given.get("custom_routing_function"):
            return self.given["custom_routing_function"](
                hidden_states=hidden, gating_output=logits, topk=self.top_k, renormalize=True
            )
        scores = probabilities(logits, self.given)
        ids = ranking(scores, self.given)[:, : self.top_k].flip(-1)  # in no order that helps
        weights = scores.gather(-1, ids)
        if self.given.get("renormalize", True):
            weights = weights / weights.sum(-1, keepdim=True)
        if scales(self.given):
            weights = weights * self.given["routed_scaling_factor"]
        return weights.float(), ids.int()


def scales(given: dict[str, Any]) -> bool:
    return bool(given.get("use_grouped_topk")) or given.get("e_score_correction_bias") is not None


def probabilities(logits: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    return logits.sigmoid() if given.get("scoring_func") == "sigmoid" else logits.softmax(-1)


def ranking(scores: torch.Tensor, given: dict[str, Any]) -> torch.Tensor:
    """All experts, best first; those of other groups come last."""
    choice = scores
    if given.get("e_score_correction_bias") is not None:
        choice = scores + given["e_score_correction_bias"]
    if given.get("use_grouped_topk"):
        groups = choice.view(len(scores), given["num_expert_group"], -1)
        best = groups.topk(2)[0].sum(-1).topk(given["topk_group"])[1]
        kept = torch.zeros(groups.shape[:2]).scatter(1, best, 1.0).bool()
        choice = groups.masked_fill(~kept.unsqueeze(-1), -torch.inf).flatten(1)
    return choice.argsort(-1, descending=True)


def native(
    top_k: int,
    global_num_experts: int,
    renormalize: bool = True,
    use_grouped_topk: bool = False,
    num_expert_group: int | None = None,
    topk_group: int | None = None,
    scoring_func: str = "softmax",
    routed_scaling_factor: float = 1.0,
    e_score_correction_bias: torch.Tensor | None = None,
    custom_routing_function: Any = None,
    eplb_state: Any = None,
) -> Router:
    given = {key: value for key, value in locals().items() if key != "top_k"}
    return Router(top_k, given)


@pytest.fixture
def building() -> Iterator[Any]:
    tokens = []

    def start(**block: Any) -> None:
        tokens.append(BUILDING.set(Building(ServedBlock(**block), layer="layers.0.mlp")))

    yield start
    for token in tokens:
        BUILDING.reset(token)


KINDS: dict[str, dict[str, Any]] = {
    "softmax": {},
    "softmax, raw": {"renormalize": False},
    "softmax, raw, a factor that the router leaves to others": {
        "renormalize": False,
        "routed_scaling_factor": 3.0,
    },
    "sigmoid, bias, groups, factor": {
        "scoring_func": "sigmoid",
        "use_grouped_topk": True,
        "num_expert_group": GROUPS,
        "topk_group": CHOSEN,
        "routed_scaling_factor": 2.5,
        "e_score_correction_bias": torch.linspace(-0.2, 0.3, E),
    },
    "sigmoid, bias, raw, factor": {
        "scoring_func": "sigmoid",
        "renormalize": False,
        "routed_scaling_factor": 2.5,
        "e_score_correction_bias": torch.linspace(0.3, -0.2, E),
    },
}


@pytest.mark.parametrize(("k1", "k2"), [(2, 6), (3, 3), (4, 2), (1, 8), (2, E), (3, 99)])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_are_the_share_of_the_top_k2(kind: str, k1: int, k2: int, building: Any) -> None:
    given = KINDS[kind]
    renormalises = given.get("renormalize", True)
    building(k1=k1, k2=k2, renormalises=renormalises)
    # A router knows its own place: its state of balanced experts is the outer one's alone.
    router = router_factory(native, [])(top_k=3, global_num_experts=E, eplb_state="state", **given)
    logits = torch.randn(200, E, generator=torch.Generator().manual_seed(k1))
    weights, ids = router._compute_routing(logits, logits, None)

    assert router.top_k == k1 and router.given["eplb_state"] == "state"
    scores = probabilities(logits.double(), given)
    ranked = ranking(scores, given)
    assert [set(row) for row in ids.tolist()] == [set(row) for row in ranked[:, :k1].tolist()]
    wanted = scores.gather(-1, ids.long())
    if renormalises or k2 < E:
        wanted = wanted / scores.gather(-1, ranked[:, :k2]).sum(-1, keepdim=True)
    if scales(given):
        wanted = wanted * given["routed_scaling_factor"]
    assert (weights - wanted).abs().max() < 1e-6


def test_a_router_outside_of_such_a_layer_is_vllms_own(building: Any) -> None:
    assert router_factory(native, [])(top_k=3, global_num_experts=E).given["eplb_state"] is None
    assert router_factory(native, [])(3, E) == native(3, E)


def test_a_router_that_divides_otherwise_than_the_model_is_refused(building: Any) -> None:
    building(k1=2, k2=6, renormalises=False)
    with pytest.raises(UnsupportedModelError, match=r"layers\.0\.mlp: the model does not divide"):
        router_factory(native, [])(top_k=3, global_num_experts=E)


def test_a_router_that_does_not_take_another_k_is_refused(building: Any) -> None:
    def two(hidden_states: Any, gating_output: torch.Tensor, topk: int, renormalize: bool) -> Any:
        return gating_output.topk(2)

    building(k1=2, k2=6)
    router = router_factory(native, [])(3, E, custom_routing_function=two)
    with pytest.raises(UnsupportedModelError, match="gives 2 experts when asked for 6"):
        router._compute_routing(torch.zeros(1, E), torch.zeros(1, E), None)
