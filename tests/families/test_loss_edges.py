"""Choices at the edge: nothing moves in, ties, one expert for all, groups that run dry, 16 bits."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from choice_reference import Said, check, heard
from test_loss_families import batch, read_back
from tiny import tiny_checkpoint

from moeprune.core.layout import MoeLayout
from moeprune.errors import UnsupportedModelError
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.stages.identify import open_model


def measured(path: Path, change: Any = None) -> tuple[Any, MoeLayout, Said]:
    """A plain model, its layout and what was said, of models that ``change`` was put to."""
    layout = open_model(path).layout
    model, plain = (load_causal_lm(path).double() for _ in range(2))
    plain.set_experts_implementation("eager")
    for one in (model, plain):
        if change is not None:
            with torch.no_grad():
                for layer in moe_layers(one, layout):
                    change(layer.router)
    with heard() as said:
        read_back(model, layout, batch("left"))
    return plain, layout, said


ALL_RUN: dict[str, dict[str, Any]] = {
    "qwen3_moe": {"num_experts": 3},
    "olmoe": {"num_experts": 3},
    "mixtral": {"num_local_experts": 2},
    "gpt_oss": {"num_local_experts": 3},
    "deepseek_v3": {"n_routed_experts": 4, "num_experts_per_tok": 4, "n_group": 1, "topk_group": 1},
}


@pytest.mark.parametrize("family", ALL_RUN)
def test_where_all_experts_run_nothing_moves_in(family: str, tmp_path: Path) -> None:
    path = tiny_checkpoint(family, tmp_path / "m", num_hidden_layers=2, **layers_of(family))
    plain, layout, said = measured(path)
    assert layout.top_k == layout.num_experts[0]
    check(plain, layout, batch("left"), said, whole=False, tolerance=1e-6)


def layers_of(family: str) -> dict[str, Any]:
    return ALL_RUN[family] | ({"mlp_only_layers": []} if family == "qwen3_moe" else {})


@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral"])
def test_a_single_expert_can_only_be_dropped(family: str, tmp_path: Path) -> None:
    one = {"qwen3_moe": "num_experts", "mixtral": "num_local_experts"}[family]
    config = layers_of(family) | {one: 1, "num_experts_per_tok": 1, "num_hidden_layers": 2}
    _, _, said = measured(tiny_checkpoint(family, tmp_path / "m", **config))
    for (_, drop_TK, cf_TK), *_ in said.values():
        assert (drop_TK != 0).any()
        assert torch.equal(drop_TK, cf_TK)


def twins(router: Any) -> None:
    router.weight[1::2] = router.weight[::2]


def nothing(router: Any) -> None:
    router.weight.zero_()


def favourites(router: Any) -> None:
    router.weight[:-4] = router.weight[:-4] * 1e-3 - router.weight[-4:].mean(dim=0)


@pytest.mark.parametrize("change", [twins, nothing, favourites])
@pytest.mark.parametrize("family", ["qwen3_moe", "olmoe", "gpt_oss", "glm4_moe"])
def test_ties_and_favourites(family: str, change: Any, tmp_path: Path, tiny: Any) -> None:
    plain, layout, said = measured(tiny(family), change)
    check(plain, layout, batch("left"), said, whole=False, tolerance=1e-6)


def test_a_group_that_runs_dry(tmp_path: Path) -> None:
    """Three of each of three groups, of which one may be visited, by three experts."""
    config = {"n_routed_experts": 9, "n_group": 3, "topk_group": 1, "num_hidden_layers": 2}
    plain, layout, said = measured(tiny_checkpoint("deepseek_v3", tmp_path / "m", **config))
    check(plain, layout, batch("left"), said, whole=False, tolerance=1e-6)


@pytest.mark.parametrize("family", ["qwen3_moe", "gpt_oss", "deepseek_v3"])
def test_in_bfloat16(family: str, tiny: Any) -> None:
    """Nothing is exact there; what is said is as near as the numbers allow."""
    path = tiny(family)
    layout = open_model(path).layout
    said = []
    for dtype in (torch.bfloat16, torch.float32):
        model = load_causal_lm(path).to(dtype)
        with heard() as one:
            read_back(model, layout, batch("right"))
        said.append(one)
    coarse, fine = said
    for row in fine:
        (ids, drop, cf), (near_ids, near_drop, near_cf) = fine[row][0], coarse[row][0]
        same = (ids.sort(dim=1).values == near_ids.sort(dim=1).values).all(dim=1)
        assert same.double().mean() > 0.7
        for values, near in ((drop, near_drop), (cf, near_cf)):
            total, near_total = values.sum(dim=1)[same], near.sum(dim=1)[same]
            assert (total - near_total).norm() < 0.25 * total.norm()


def test_a_router_that_is_no_linear_map_is_refused(tiny: Any) -> None:
    path = tiny("qwen3_moe")
    layout = open_model(path).layout
    model = load_causal_lm(path)
    for layer in moe_layers(model, layout):
        forward_by_sums(layer.router)
    with pytest.raises(UnsupportedModelError, match="layer 3: no single linear map of its router"):
        read_back(model, layout, batch("right"))


def forward_by_sums(router: Any) -> None:
    def forward(hidden: torch.Tensor) -> Any:
        logits = (hidden[:, None] * router.weight).sum(dim=-1)
        weights, ids = logits.softmax(dim=-1).topk(router.top_k, dim=-1)
        return logits, weights, ids

    router.forward = forward
