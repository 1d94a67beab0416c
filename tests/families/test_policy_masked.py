"""Every family: a policy around a masked plan gives the logits of the policy on the export."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from family_data import family_data, load, logits_of, params, text_model, write_checkpoint
from plans import plan_keeping
from policy_watch import IDS

import moeprune
from moeprune.core.policy import RoutingPolicy
from moeprune.observe.layers import moe_layers
from moeprune.routing.mask import masked_experts
from moeprune.stages.identify import open_model
from moeprune.stages.policies import policy_applied, self_check

# By each way to choose; all others under the marker. None of ZAYA and its like takes a policy.
FAST = {"dbrx", "deepseek_v4", "gemma4_text", "inkling_text", "kolibri1", "longcat_flash"}
FIXED = {"jetmoe", "llama4", "llama4_text", "phimoe", "zaya"}


def chosen() -> list[Any]:
    names = [param for param in params() if param.values[0] not in FIXED]
    return [param for param in names if param.marks or param.values[0] in FAST]


@pytest.mark.parametrize("name", chosen())
def test_as_on_the_export(name: str, tmp_path: Path) -> None:
    data = family_data(name)
    source = write_checkpoint(data, tmp_path / "source")
    layout = open_model(source).layout
    size = layout.num_experts[0] // layout.num_groups
    leave = 3 // layout.num_groups
    keep = []
    for row, count in enumerate(layout.num_experts):
        gone = {(2 * row + 1 + step) % size for step in range(leave)}
        keep.append([expert for expert in range(count) if expert % size not in gone])
    plan = plan_keeping(source, keep)
    out = moeprune.export(source, plan=plan, output=tmp_path / "out")
    small, small_layout = text_model(data, load(data, out)[0]), open_model(out).layout
    full = text_model(data, load(data, source)[0])
    layers = moe_layers(full, layout)
    masked = masked_experts(
        full,
        routers=[layer.router for layer in layers],
        num_experts=[layer.num_experts for layer in layers],
        removed=[plan.removed[layer.row] for layer in layers],
        extra=layout.extra_rows,
    )
    with masked:
        assert self_check(full, layout, IDS, plan.keep).routers
        for k1, k2 in ((2, 5), (4, 3), (2, 9), (3, 12), (6, 9)):
            if layout.model_type == "axk2" and k1 > 4:
                continue  # experts of other groups, removed ones too, rank above scores below zero
            policy = RoutingPolicy(k1=k1, k2=k2)
            with policy_applied(full, layout, policy, plan.keep):
                found = logits_of(full, IDS)
            with policy_applied(small, small_layout, policy):
                want = logits_of(small, IDS)
            assert (found - want).abs().max() <= 5e-5 * max(1.0, float(want.abs().max())), policy
