"""Policies: values that no router takes, and what a model's layers can rank."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from moeprune.core.layout import MoeLayout
from moeprune.core.policy import RoutingPolicy
from moeprune.core.policy_checks import check_policy
from moeprune.errors import MoePruneError, UnsupportedModelError, UsageError

LAYOUT = MoeLayout(
    model_type="made_up",
    layer_ids=(1, 4),
    num_experts=(12, 8),
    top_k=3,
    num_groups=1,
    top_groups=1,
    gating="softmax",
    expert_bytes=(1, 1),
    count_keys=(("num_experts",),),
    tensors={},
    experts_module="experts",
    router_module="gate",
    observer="function",
    quant_method=None,
)
GROUPED = replace(LAYOUT, num_experts=(12, 12), num_groups=3, top_groups=2)


@pytest.mark.parametrize("pair", [(1, 1), (8, 8), (8, 1), (2, 100), (3, 10)])
def test_pairs_that_every_layer_can_run(pair: tuple[int, int]) -> None:
    check_policy(RoutingPolicy(k1=pair[0], k2=pair[1]), LAYOUT)


def test_the_smallest_layer_decides() -> None:
    with pytest.raises(
        UsageError, match=r"^--k1 9 is too many: layer 4 has 8 experts\. Give at most 8\.$"
    ):
        check_policy(RoutingPolicy(k1=9, k2=9), LAYOUT)


def test_a_plan_leaves_fewer() -> None:
    keep = [range(12), (0, 3, 4, 7)]
    check_policy(RoutingPolicy(k1=4, k2=12), LAYOUT, keep)
    with pytest.raises(UsageError, match="layer 4 has 4 experts"):
        check_policy(RoutingPolicy(k1=5, k2=12), LAYOUT, keep)


@pytest.mark.parametrize(("k2", "good"), [(1, True), (8, True), (9, False), (11, False)])
def test_groups_rank_what_they_hold(k2: int, good: bool) -> None:
    for pair, sound in (((2, k2), good), ((2, 12), True), ((2, 50), True)):
        policy = RoutingPolicy(k1=pair[0], k2=pair[1])
        if sound:
            check_policy(policy, GROUPED)
        else:
            with pytest.raises(UsageError, match=r"hold 8 experts, and the other 4 have no rank"):
                check_policy(policy, GROUPED)


def test_groups_of_a_plan_hold_less() -> None:
    keep = [(0, 1, 2, 4, 5, 6, 8, 9, 10)] * 2
    check_policy(RoutingPolicy(k1=6, k2=6), GROUPED, keep)
    check_policy(RoutingPolicy(k1=6, k2=9), GROUPED, keep)
    with pytest.raises(UsageError, match="of which a token chooses from 6"):
        check_policy(RoutingPolicy(k1=7, k2=9), GROUPED, keep)
    with pytest.raises(UsageError, match=r"Give at most 6, or 9 for all\.$"):
        check_policy(RoutingPolicy(k1=3, k2=8), GROUPED, keep)


@pytest.mark.parametrize(
    ("layout", "policy", "message"),
    [
        (replace(LAYOUT, fixed_routing="it cannot"), (2, 2), "do not fit family made_up: it can"),
        (replace(LAYOUT, least_top_k=2), (1, 2), r"--k1 1 is too few: .* Give 2 at least\.$"),
    ],
)
def test_families_that_cannot(layout: MoeLayout, policy: Any, message: str) -> None:
    with pytest.raises(MoePruneError, match=message) as caught:
        check_policy(RoutingPolicy(k1=policy[0], k2=policy[1]), layout)
    assert isinstance(caught.value, UnsupportedModelError if layout.fixed_routing else UsageError)


def test_one_gain_or_one_for_each_layer() -> None:
    check_policy(RoutingPolicy(k1=2, k2=2, gain=(0.5, 2.0)), LAYOUT)
    with pytest.raises(UsageError, match="--gain has 3 numbers, the model 2 MoE layers"):
        check_policy(RoutingPolicy(k1=2, k2=2, gain=(0.5, 2.0, 1.0)), LAYOUT)


def test_the_native_pair() -> None:
    assert LAYOUT.native_policy == RoutingPolicy(k1=3, k2=3)
    raw = replace(LAYOUT, renormalises=False)
    assert raw.native_policy == RoutingPolicy(k1=3, k2=12)
    facts = {"name": "m", "fingerprint": "f", "total_bytes": 10**6}
    assert LAYOUT.facts(**facts).native_k2 == 3  # type: ignore[arg-type]
    assert raw.facts(**facts).native_k2 == 12  # type: ignore[arg-type]
    assert replace(raw, fixed_routing="no").facts(**facts).native_k2 == 0  # type: ignore[arg-type]
