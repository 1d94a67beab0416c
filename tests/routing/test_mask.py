"""The masked oracle: removed experts are never chosen, and nothing of the model stays changed."""

from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Tiny
from tiny import FAMILIES

from moeprune.errors import VerificationError
from moeprune.observe.layers import MoeLayer, moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.routing.mask import masked_experts
from moeprune.stages.identify import open_model

IDS = torch.arange(3, 99).reshape(2, 48)


def loaded(path: Path) -> tuple[Any, tuple[MoeLayer, ...]]:
    model = load_causal_lm(path)
    return model, moe_layers(model, open_model(path).layout)


def chosen(model: Any, layers: tuple[MoeLayer, ...]) -> list[set[int]]:
    """Experts that each layer's router chose for IDS, from the router's own output."""
    seen: list[set[int]] = [set() for _ in layers]
    handles = []
    for row, layer in enumerate(layers):

        def hook(_m: Any, _a: Any, output: Any, row: int = row) -> None:
            last = output[-1]
            if last.dtype == torch.long:
                seen[row] |= set(last.flatten().tolist())
            else:  # Llama 4 gives dense scores, zero where not chosen
                seen[row] |= set(output[0].reshape(-1, last.shape[-1]).nonzero()[:, 1].tolist())

        handles.append(layer.router.register_forward_hook(hook))
    with torch.inference_mode():
        model(input_ids=IDS)
    for handle in handles:
        handle.remove()
    return seen


@pytest.mark.parametrize("family", FAMILIES)
def test_removed_experts_are_never_chosen(family: str, tiny: Tiny) -> None:
    model, layers = loaded(tiny(family))
    before = {name: tensor.clone() for name, tensor in model.state_dict().items()}
    with torch.inference_mode():
        plain = model(input_ids=IDS).logits
    # Remove the most wanted ones; one of each router group where there are groups.
    groups = 3 if family == "deepseek_v3" else 1
    removed = []
    for layer, wanted in zip(layers, chosen(model, layers), strict=True):
        size = layer.num_experts // groups
        removed.append(
            [max(e for e in range(g * size, (g + 1) * size) if e in wanted) for g in range(groups)]
        )
    with masked_experts(
        model,
        routers=[layer.router for layer in layers],
        num_experts=[layer.num_experts for layer in layers],
        removed=removed,
    ):
        for ids, seen in zip(removed, chosen(model, layers), strict=True):
            assert not set(ids) & seen
            assert seen
        with torch.inference_mode():
            masked = model(input_ids=IDS).logits
    assert torch.isfinite(masked).all()
    assert (masked - plain).abs().max() > 1e-3
    with torch.inference_mode():
        assert torch.equal(model(input_ids=IDS).logits, plain)
    for name, tensor in model.state_dict().items():
        assert torch.equal(tensor, before[name]), name
    assert all("forward" not in layer.router.__dict__ for layer in layers)


def test_a_router_that_never_runs_is_an_error(tiny: Tiny) -> None:
    model, layers = loaded(tiny("olmoe"))
    with (
        pytest.raises(VerificationError, match="0 of 0 calls"),
        masked_experts(model, routers=[layers[0].router], num_experts=[12], removed=[[1]]),
    ):
        pass


def test_a_router_whose_logits_are_elsewhere_is_an_error(tiny: Tiny) -> None:
    """Logits that no linear map of E outputs makes cannot be masked: said, not ignored."""
    model, layers = loaded(tiny("olmoe"))
    with (
        pytest.raises(VerificationError, match="cannot be trusted"),
        masked_experts(model, routers=[layers[0].router], num_experts=[11], removed=[[1]]),
        torch.inference_mode(),
    ):
        model(input_ids=IDS)


def test_restored_after_an_error_inside(tiny: Tiny) -> None:
    model, layers = loaded(tiny("deepseek_v3"))
    bias = layers[0].router.e_score_correction_bias
    with (
        pytest.raises(ValueError, match="inside"),
        masked_experts(model, routers=[layers[0].router], num_experts=[12], removed=[[0, 4, 8]]),
    ):
        assert bias[0] == -torch.inf
        raise ValueError("inside")
    assert torch.isfinite(bias).all()


class Router(torch.nn.Module):
    """As many inner features as there are choices: 3 experts and an idle one."""

    def __init__(self, inner: int) -> None:
        super().__init__()
        self.inner = torch.nn.Linear(8, inner)
        self.weight = torch.nn.Parameter(torch.randn(4, inner))
        self.tid2eid = torch.nn.Buffer(torch.tensor([[0, 1], [1, 2], [2, 0]]))

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.linear(self.inner(hidden), self.weight)


class Block(torch.nn.Module):
    def __init__(self, inner: int) -> None:
        super().__init__()
        self.gate = Router(inner)

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        out: torch.Tensor = self.gate(hidden)
        return out


def test_further_choices_of_a_router_stay() -> None:
    model = Block(inner=6)
    with masked_experts(model, routers=[model.gate], num_experts=[3], removed=[[1]], extra=1):
        logits = model(torch.randn(5, 8))
    assert (logits[:, 1] == -torch.inf).all()
    assert torch.isfinite(logits[:, [0, 2, 3]]).all()


def test_a_router_with_two_maps_of_that_width_is_an_error() -> None:
    """One of the two gives no logits; which one cannot be told."""
    model = Block(inner=4)
    with (
        pytest.raises(VerificationError, match="2 of 1 calls"),
        masked_experts(model, routers=[model.gate], num_experts=[3], removed=[[1]], extra=1),
    ):
        model(torch.randn(5, 8))


def test_a_table_names_kept_experts_inside() -> None:
    model = Block(inner=6)
    before = model.gate.tid2eid.clone()
    with masked_experts(model, routers=[model.gate], num_experts=[3], removed=[[1]], extra=1):
        model(torch.randn(5, 8))
        inside = model.gate.tid2eid.tolist()
    assert inside == [[0, 2], [0, 2], [2, 0]]
    assert torch.equal(model.gate.tid2eid, before)
