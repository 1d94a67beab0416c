"""A rounding put on by hand: its size, its seed, and that nothing of it stays."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from moeprune.evaluate.logits import LogitDifference, prompt_logits
from moeprune.evaluate.rounding import rounded_anew, rounding_noise


class Two(nn.Module):
    """Experts that give a tensor, and experts that give several things."""

    device = torch.device("cpu")

    def __init__(self, gain: float = 1.0) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.table = nn.Embedding(9, 6)
        self.one = nn.Linear(6, 6)
        self.several = Several()
        self.gain = gain

    def forward(self, input_ids: torch.Tensor, use_cache: bool) -> object:
        hidden = self.several(self.one(self.table(input_ids)))[0]
        return type("Output", (), {"logits": hidden * self.gain})


class Several(nn.Module):
    def forward(self, hidden: torch.Tensor) -> tuple[torch.Tensor, str]:
        return hidden, "routing"


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float64])
def test_every_number_moves_by_one_rounding(dtype: torch.dtype) -> None:
    model = Two().to(dtype)
    plain = model.one(torch.randn(3, 6, dtype=dtype))
    layer = nn.Identity()
    with rounded_anew([layer, layer], seed=0):  # twice the same module: once
        moved = layer(plain)
    step = torch.finfo(dtype).eps * plain.abs().amax(-1, keepdim=True)
    steps = (moved.double() - plain.double()).abs() / step.double()
    assert (steps <= 2).all() and (moved != plain).any() and (moved > plain).any()
    assert (moved < plain).any()
    assert torch.equal(layer(plain), plain)  # nothing stays
    with rounded_anew([layer], seed=0):
        assert torch.equal(layer(plain), moved)
    with rounded_anew([layer], seed=1):
        assert not torch.equal(layer(plain), moved)


def test_other_outputs_pass_as_they_are() -> None:
    module = Several()
    with rounded_anew([module], seed=0):
        found = module(torch.ones(2, 3))
    assert found[1] == "routing" and (found[0] != 1).all()


def test_noise_is_what_the_model_makes_of_it() -> None:
    prompts = [[1, 2, 3], [4, 5]]
    noises = []
    for gain in (1.0, 1000.0):
        model = Two(gain)
        reference = prompt_logits(model, prompts)
        experts = [model.one, model.several]
        noises.append(rounding_noise(model, prompts, reference, experts=experts))
    assert 0 < noises[0] < 1e-5 and noises[1] == pytest.approx(1000 * noises[0], rel=0.1)
    assert rounding_noise(model, prompts, reference, experts=[]) == 0


def test_what_rounding_allows_ends() -> None:
    """A model that turns rounding into anything is not let off."""

    def allowed(scale: float, noise: float) -> float:
        found = LogitDifference(0.0, scale, 1.0, 1, noise=noise)
        return found.allowed(1e-5)

    assert allowed(1.0, 0.0) == allowed(0.1, 1e-6) == pytest.approx(1e-5)
    assert allowed(1.0, 1e-5) == pytest.approx(5e-5)
    assert allowed(4.0, 1e-5) == pytest.approx(5e-5)
    assert allowed(4.0, 9.0) == allowed(4.0, float("inf")) == pytest.approx(4e-3)
