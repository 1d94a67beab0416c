"""How a policy is stated: k₁ with k₂, the word E, gains and ablations; one line for the rest."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.policy import RoutingPolicy
from moeprune.core.policy_words import PolicyWords
from moeprune.errors import UsageError

NATIVE = RoutingPolicy(k1=4, k2=4)


def policy(**said: Any) -> RoutingPolicy:
    return PolicyWords(**said).policy(native=NATIVE, experts=16)


@pytest.mark.parametrize(
    ("said", "wanted"),
    [
        ({"k1": 2, "k2": 8}, {"k1": 2, "k2": 8}),
        ({"k1": 2, "k2": "E"}, {"k1": 2, "k2": 16}),
        ({"gain": 2}, {"k1": 4, "k2": 4, "gain": 2.0}),
        ({"gain": [1, 0.5], "k1": 1, "k2": 1}, {"k1": 1, "k2": 1, "gain": (1.0, 0.5)}),
        ({"ablation": "random", "seed": 3}, {"k1": 4, "k2": 4, "ablation": "random", "seed": 3}),
    ],
)
def test_what_is_stated(said: dict[str, Any], wanted: dict[str, Any]) -> None:
    assert PolicyWords(**said).given
    assert policy(**said) == RoutingPolicy(**wanted)


@given(k1=st.integers(1, 300), k2=st.integers(1, 300), gain=st.floats(0.01, 100))
def test_numbers_are_taken_as_they_are(k1: int, k2: int, gain: float) -> None:
    assert policy(k1=k1, k2=k2, gain=gain) == RoutingPolicy(k1=k1, k2=k2, gain=gain)


def test_nothing_is_stated() -> None:
    assert not PolicyWords().given


@pytest.mark.parametrize(
    ("said", "match"),
    [
        ({"k1": 2}, r"--k1 2 says how many .* Give --k2 too: 2 is what lowering k does .* 4 keeps"),
        ({"k1": 4}, r"--k1 4 says .*: with 4 that is the model's own routing; 'moeprune scan'"),
        ({"k1": 6}, r"--k1 6 says .*: 6 is what raising k does by default, 4 keeps"),
        ({"k2": 8}, r"--k2 8 says what .* Give --k1 too \(the model runs 4\)"),
        ({"k2": "E"}, "--k2 E says what"),
        ({"k1": 2, "k2": "e"}, "--k2 cannot be 'e': give a whole number from 1, or E for all"),
        ({"k1": 2, "k2": True}, "--k2 cannot be True"),
        ({"k1": 0, "k2": 2}, "--k1 cannot be 0"),
        ({"gain": 0}, "--gain cannot be 0"),
        ({"gain": [1.0, "x"]}, "--gain cannot be 'x'"),
        ({"seed": 3}, r"a seed \(3\) is for an ablation, and none is named"),
        ({"k1": 2, "k2": 2, "ablation": "uniformly"}, "there is no ablation 'uniformly'"),
    ],
)
def test_what_cannot_be(said: dict[str, Any], match: str) -> None:
    with pytest.raises(UsageError, match=match) as caught:
        policy(**said)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("k1", "match"),
    [
        (2, "Give --k2 too: E is what lowering k does by default, and leaves every weight"),
        (4, "Give --k2 too: with E that is the model's own routing"),
    ],
)
def test_a_k1_alone_of_a_router_that_does_not_renormalise(k1: int, match: str) -> None:
    with pytest.raises(UsageError, match=match):
        PolicyWords(k1=k1).policy(native=RoutingPolicy(k1=4, k2=16), experts=16)
