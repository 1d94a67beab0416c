"""Every family: the experts of a token, by rank, equal a slow reference sorted token by token."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
from family_data import FamilyData, family_data, load, params, text_model, write_checkpoint
from forward_reference import Watched, selection_bias, watch
from router_reference import scores_of

from moeprune.core.layout import MoeLayout
from moeprune.core.policy import RoutingPolicy
from moeprune.errors import UnsupportedModelError
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import decoder_of
from moeprune.routing.selection import selections
from moeprune.stages.identify import open_model
from moeprune.stages.policies import policy_applied

# No other number of experts can run, or no one pass is the model's selection.
FIXED = {"jetmoe", "llama4", "llama4_text", "phimoe", "zaya", "diffusion_gemma"}
TEXTS = ([70, 3, 9, 3, 200, 41, 8, 17], [5], list(range(100, 117)))

Loaded = tuple[FamilyData, Any, MoeLayout]


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Loaded]:
    """Checkpoints, written and loaded once for all tests of this file."""
    made: dict[str, Loaded] = {}

    def get(name: str) -> Loaded:
        if name not in made:
            data = family_data(name)
            path: Path = write_checkpoint(data, tmp_path_factory.mktemp(name) / name)
            made[name] = data, text_model(data, load(data, path)[0]), open_model(path).layout
        return made[name]

    return get


def heard(model: Any, layout: MoeLayout) -> list[list[Any]]:
    torch.manual_seed(0)
    running = selections(
        model,
        decoder_of(model),
        moe_layers(model, layout),
        TEXTS,
        gating=layout.gating,
        kind=layout.observer,
        device=torch.device("cpu"),
    )
    with closing(running) as found:
        return list(found)


def by_rank(one: Watched, bias_E: Any, data: FamilyData, layout: MoeLayout) -> list[list[int]]:
    """Sorted in plain Python by what the data file says the choice goes by."""
    logits_TE = one.logits_TE.numpy()
    scores_TE = logits_TE
    if bias_E is not None:
        if data.router.get("bias") != "logits":
            scores_TE = scores_of(logits_TE, gating=layout.gating)
        scores_TE = scores_TE + bias_E
    return [
        sorted(ids, key=lambda expert: (-scores[expert], expert))
        for ids, scores in zip(one.ids_TK.tolist(), scores_TE.tolist(), strict=True)
    ]


@pytest.mark.parametrize("name", params())
def test_ranks(name: str, loaded: Callable[[str], Loaded]) -> None:
    data, model, layout = loaded(name)
    if data.canvas:
        with pytest.raises(UnsupportedModelError, match="in many steps"):
            heard(model, layout)
        return
    biases = selection_bias(model, layout)
    passes = layout.passes or (1,) * len(layout.layer_ids)
    found = heard(model, layout)
    assert [[ids_PSK.shape[:2] for ids_PSK in text] for text in found] == [
        [(runs, len(ids)) for runs in passes] for ids in TEXTS
    ]
    for number, ids in enumerate(TEXTS):
        torch.manual_seed(0)
        for runs in watch(model, layout, ids, data, number=number):
            ids_PSK = found[number][runs[0].row]
            for one, ids_SK in zip(runs, ids_PSK, strict=True):
                wanted = by_rank(one, biases[one.row], data, layout)
                assert ids_SK.tolist() == wanted
                assert one.logits_TE.shape[0] == 1 or len({*map(tuple, wanted)}) > 1
    assert not model._forward_hooks
    for layer in moe_layers(model, layout):
        assert not layer.router._forward_hooks and not layer.experts._forward_pre_hooks


@pytest.mark.parametrize("name", [one for one in params() if one.values[0] not in FIXED])
def test_fewer_experts_are_the_first_of_more(name: str, loaded: Callable[[str], Loaded]) -> None:
    """Where the first layer sees the same text, k1 of a policy are the native choice's first."""
    _, model, layout = loaded(name)
    native = heard(model, layout)
    k1 = max(layout.least_top_k, layout.top_k - 1)
    with policy_applied(model, layout, RoutingPolicy(k1=k1, k2=layout.top_k)):
        fewer = heard(model, layout)
    for whole, part in zip(native, fewer, strict=True):
        first = min(range(len(whole)), key=lambda row: layout.layer_ids[row])
        looked_up = hasattr(moe_layers(model, layout)[first].router, "tid2eid")
        wide = whole[first][:1] if looked_up else whole[first][:1, :, :k1]
        assert part[first][:1].tolist() == wide.tolist()
