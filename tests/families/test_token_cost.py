"""What a token costs by shapes, against the parameters that its forward and backward pass reach.

A parameter that a token passes has a gradient (zero or not), and of experts and embeddings only the
rows that were used have one that is not zero. Nothing here looks at names of towers, projectors or
next-token layers: what the pass does not reach has no gradient.
"""

from __future__ import annotations

import itertools
import re
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from family_data import family_data, params, random_model, text_model
from plans import plan_keeping
from torch import nn

from moeprune.core.limits import limits
from moeprune.core.policy import RoutingPolicy
from moeprune.errors import UnsupportedModelError
from moeprune.observe.layers import ELSEWHERE, moe_layers
from moeprune.stages.costs import token_cost
from moeprune.stages.export import export
from moeprune.stages.identify import OpenModel, open_model
from moeprune.stages.policies import policy_applied

# Used to choose, by rank alone: no gradient flows through a choice of experts or of earlier tokens.
_CHOOSES = re.compile(r"indexer|compressor|expert_bias|correction_bias|balancing_biases")
_SHARED = re.compile(r"shared?_(expert|mlp)")
TOKEN = 70
TEXT = [one for one in params() if not family_data(str(one.values[0])).canvas]


def reached(model: Any, part: Any, opened: OpenModel) -> dict[str, int]:
    """Parameters that one token reaches, by what they are."""
    part(input_ids=torch.tensor([[TOKEN]]), use_cache=False).logits.square().sum().backward()
    layers = moe_layers(model, opened.layout)
    routers = {id(value) for layer in layers for value in layer.router.parameters()}
    weights = [
        [v for v in layer.experts.parameters() if v.ndim > 1 and id(v) not in routers]
        for layer in layers
    ]
    experts = {id(value) for values in weights for value in values}
    heads = {id(module.weight) for module in model.modules() if isinstance(module, nn.Linear)}
    tables = {id(module.weight) for module in model.modules() if isinstance(module, nn.Embedding)}
    tables -= heads  # tied to the output layer, which reads all of it
    found = dict.fromkeys(("routed", "shared", "other"), 0)
    for name, value in model.named_parameters():
        if value.grad is None:
            continue
        if id(value) in experts:
            continue
        if id(value) in tables:
            used = (value.grad != 0).any(1)
            assert used.nonzero().ravel().tolist() == [TOKEN]
            found["other"] += value.shape[1]
        else:
            found["shared" if _SHARED.search(name) else "other"] += value.numel()
    for layer, values in zip(layers, weights, strict=True):
        found["routed"] += routed(values, layer.num_experts)
    return found


def routed(values: list[nn.Parameter], num_experts: int) -> int:
    """Parameters of the experts that one of a layer's tensors has a gradient of."""
    # Stacked, with idle experts behind them or not, or blocks of rows.
    counts = [value.shape[0] if value.ndim == 3 else num_experts for value in values]
    used: set[int] = set()
    for value, rows in zip(values, counts, strict=True):
        if value.grad is None:  # the token chose idle experts alone
            continue
        used |= set((value.grad != 0).reshape(rows, -1).any(1).nonzero().ravel().tolist())
    return sum(
        len([row for row in used if row < rows]) * value.numel() // rows
        for value, rows in zip(values, counts, strict=True)
    )


def not_learned(model: Any, part: Any) -> int:
    """Numbers on the token's path that get no gradient: those that choose, and fixed ones."""
    path = {id(value) for module in (part, model) for value in _text_modules(module)}
    numbers = {
        name: value
        for name, value in model.state_dict(keep_vars=True).items()
        if value.is_floating_point() and value.grad is None and id(value) in path
    }
    fixed = {name for name, _ in model.named_buffers()}
    return sum(
        value.numel() for name, value in numbers.items() if name in fixed or _CHOOSES.search(name)
    )


def _text_modules(model: Any) -> Iterator[torch.Tensor]:
    for name, value in itertools.chain(model.named_parameters(), model.named_buffers()):
        # The selection biases of ERNIE's experts for text and images are one stored tensor.
        for_images = "vision_moe" in name and "moe_statics" not in name
        if not ELSEWHERE.search(name) and not for_images:
            yield value


@pytest.mark.parametrize("name", TEXT)
def test_parameters_are_those_that_a_token_reaches(name: str, tmp_path: Path) -> None:
    data = family_data(name)
    model = random_model(data)
    model.save_pretrained(tmp_path)
    opened = open_model(tmp_path)
    for value in model.parameters():
        value.requires_grad_(True)
    part = text_model(data, model)
    expected = reached(model, part, opened)
    once = replace(opened.layout, passes=())
    cost = token_cost(replace(opened, layout=once)).native
    assert cost.shared == expected["shared"]
    assert cost.other == expected["other"] + not_learned(model, part)
    if opened.layout.idle_experts:
        assert cost.routed >= expected["routed"]
    elif not opened.layout.passes:
        assert cost.routed == expected["routed"]
    assert cost.bytes_per_token >= 4 * cost.total  # a row of a table that is looked up, beside it


def test_layers_that_run_again_count_again(tmp_path: Path) -> None:
    model = random_model(family_data("inkling2_loop_text"))
    model.save_pretrained(tmp_path)
    opened = open_model(tmp_path)
    runs: Counter[str] = Counter()

    def count(name: str) -> Callable[..., None]:
        return lambda *_: runs.update([name])

    for name, module in model.named_modules():
        if re.fullmatch(r"model[.]layers[.][0-9]+", name):
            module.register_forward_hook(count(name))
    model(input_ids=torch.tensor([[TOKEN]]), use_cache=False)
    assert len(set(runs.values())) == 2
    repeated = Counter[str]()
    for name, value in model.named_parameters():
        if name.endswith("_input.query"):  # stored outside of the layers
            continue
        layer = re.match(r"model[.]layers[.][0-9]+", name)
        part = "routed" if ".experts." in name else "shared" if "shared_expert" in name else "other"
        again = runs[layer[0]] - 1 if layer else 0
        share = 3 / 12 if part == "routed" else 1
        repeated[part] += int(again * share * value.numel())
    looped = token_cost(opened).native
    once = token_cost(replace(opened, layout=replace(opened.layout, passes=()))).native
    biases = 12 * sum(number - 1 for number in runs.values())  # of the routers, no parameters here
    assert looped.routed - once.routed == repeated["routed"]
    assert looped.shared - once.shared == repeated["shared"]
    assert looped.other - once.other == repeated["other"] + biases
    assert looped.bytes_per_token - once.bytes_per_token == 4 * (looped.total - once.total)


@pytest.mark.parametrize("name", [one for one in params() if one.id.endswith("-fast")])
def test_pruned_costs_as_the_exported_checkpoint(name: str, tmp_path: Path) -> None:
    random_model(family_data(name)).save_pretrained(tmp_path / "full")
    opened = open_model(tmp_path / "full")
    unit, experts = limits(opened.facts).unit, opened.facts.width
    per = experts // max(opened.layout.num_groups, 1)
    groups = [range(first, first + per) for first in range(0, experts, per)]
    keep = tuple(sorted(e for group in groups for e in group[unit // len(groups) or 1 :]))
    plan = plan_keeping(tmp_path / "full", [keep] * len(opened.layout.layer_ids))
    out = export(tmp_path / "full", plan=plan, output=tmp_path / "out")
    pruned = token_cost(opened, keep=plan.keep)
    assert pruned.activated == token_cost(open_model(out)).native
    assert pruned.native == token_cost(opened).native
    assert pruned.routed == pruned.native.routed  # as many experts as before
    assert pruned.other < pruned.native.other  # and fewer router rows


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("ernie4_5_moe", {"tie_word_embeddings": True}),
        ("gemma4_text", {"tie_word_embeddings": True}),
        ("gemma4_text", {"hidden_size_per_layer_input": 8, "vocab_size_per_layer_input": 272}),
    ],
)
def test_tables_count_by_what_is_read(name: str, changes: dict[str, Any], tmp_path: Path) -> None:
    data = family_data(name)
    data.config.update(changes)
    model = random_model(data)
    model.save_pretrained(tmp_path)
    opened = open_model(tmp_path)
    for value in model.parameters():
        value.requires_grad_(True)
    expected = reached(model, model, opened)
    assert token_cost(opened).native.other == expected["other"] + not_learned(model, model)


@pytest.mark.parametrize("name", TEXT)
def test_policies_cost_what_a_token_then_reaches(name: str, tmp_path: Path) -> None:
    data = family_data(name)
    model = random_model(data)
    model.save_pretrained(tmp_path)
    opened = open_model(tmp_path)
    for value in model.parameters():
        value.requires_grad_(True)
    policy = RoutingPolicy(k1=2, k2=opened.facts.width)
    if opened.layout.fixed_routing:
        with pytest.raises(UnsupportedModelError), policy_applied(model, opened.layout, policy):
            pass
        return
    with policy_applied(model, opened.layout, policy):
        expected = reached(model, text_model(data, model), opened)
    cost = token_cost(opened, policy=policy)
    assert cost.shared == expected["shared"] == cost.native.shared
    assert cost.other == cost.native.other
    if opened.layout.idle_experts:
        assert cost.routed >= expected["routed"]
    elif not opened.layout.passes:
        assert cost.routed == expected["routed"]
    looked_up = any(rule.role == "table" for rule in opened.layout.tensors.values())
    assert cost.routed * 3 == cost.native.routed * 2 or looked_up
