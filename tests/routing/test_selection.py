"""Ranks of a token's experts: ties, order, and routers that give no number."""

from __future__ import annotations

import random
from typing import Any

import pytest
import torch
from tiny import tiny_config

from moeprune.errors import CheckpointError, UnsupportedModelError
from moeprune.routing.selection import ranked, selections


def test_ranked_as_sorted_in_python() -> None:
    """Scores of few values: many ties; of equal ones the lower id comes first."""
    draw = random.Random(0)
    for _ in range(200):
        experts, k = draw.randint(1, 9), 0
        k = draw.randint(1, experts)
        scores = [[draw.choice([0.0, 0.5, -1.0, 2.0]) for _ in range(experts)] for _ in range(3)]
        ids = [draw.sample(range(experts), k) for _ in range(3)]
        found = ranked(torch.tensor(ids), torch.tensor(scores), layer=0)
        assert found.tolist() == [
            sorted(own, key=lambda expert: (-row[expert], expert))
            for own, row in zip(ids, scores, strict=True)
        ]


def test_a_score_that_is_no_number() -> None:
    scores = torch.tensor([[1.0, torch.nan, -torch.inf]])
    assert ranked(torch.tensor([[2, 0]]), scores, layer=3).tolist() == [[0, 2]]
    with pytest.raises(CheckpointError, match="layer 3: the router gives a number that is not"):
        ranked(torch.tensor([[1, 0]]), scores, layer=3)


class _Layer:
    def __init__(self, block: Any, row: int, layer: int) -> None:
        self.row, self.layer, self.num_experts, self.num_idle = row, layer, 12, 0
        self.router, self.experts = block.gate, block.experts


def test_experts_that_are_called_in_another_way() -> None:
    """A kernel that routes by itself: in one line, before anything is counted."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_config(tiny_config("qwen3_moe", num_hidden_layers=1))
    block = model.model.layers[0].mlp
    block.__dict__["forward"] = lambda hidden: hidden
    running = selections(
        model,
        model.model,
        [_Layer(block, 0, 0)],
        [[1, 2, 3]],
        gating="softmax",
        kind="function",
        device=torch.device("cpu"),
    )
    with pytest.raises(UnsupportedModelError, match="layer 0: its experts were never given") as no:
        next(running)
    assert "\n" not in str(no.value)
    assert not block.gate._forward_hooks and not block.experts._forward_pre_hooks
