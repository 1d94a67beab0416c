"""The ``moeprune`` block, as a runtime reads it, and what it means for one layer."""

from types import SimpleNamespace
from typing import Any

import pytest

from moeprune.architectures import _config
from moeprune.checkpoint import own_code
from moeprune.errors import CheckpointError, UnsupportedModelError
from moeprune.routing import vllm_block
from moeprune.routing.vllm_block import ServedBlock, ranks, served_block, stating


def config(**block: Any) -> SimpleNamespace:
    return SimpleNamespace(moeprune={"format": 1, **block})


def test_what_export_writes_is_what_is_read() -> None:
    assert vllm_block.COUNT_KEYS == _config.COUNT_KEYS
    assert own_code.FORMAT == vllm_block.FORMAT


@pytest.mark.parametrize(
    "ordinary", [SimpleNamespace(), SimpleNamespace(moeprune=None), config(), config(later=1)]
)
def test_a_model_without_the_block_is_an_ordinary_one(ordinary: SimpleNamespace) -> None:
    assert served_block(ordinary) is None


def test_reads_what_is_there() -> None:
    assert served_block(config(k1=2, k2=8, renormalises=True, routers={})) == ServedBlock(
        k1=2, k2=8, renormalises=True
    )
    block = served_block(config(experts_per_layer=[None, 6, 4]))
    assert block == ServedBlock(counts=(None, 6, 4)) and block.widest == 6
    names = ("model.layers.0.mlp", "language_model.model.layers.2.mlp.experts", "layers.3.x", "lm")
    assert [block.count_of(name) for name in names] == [None, 4, None, None]


@pytest.mark.parametrize(
    "block",
    [
        {"k1": 2},
        {"k2": 2},
        {"k1": 0, "k2": 4},
        {"k1": True, "k2": 4},
        {"k1": "2", "k2": 4},
        {"k1": 2, "k2": 4, "format": 2},
        {"k1": 2, "k2": 4, "renormalises": "always"},
        {"experts_per_layer": 4},
        {"experts_per_layer": [4, -1]},
    ],
)
def test_a_malformed_block_is_one_line(block: dict[str, Any]) -> None:
    with pytest.raises(CheckpointError) as error:
        served_block(config(**block))
    assert "\n" not in str(error.value) and repr(next(iter(block.values()))) in str(error.value)


@pytest.mark.parametrize(
    ("k1", "k2", "groups", "renormalises", "wanted"),
    [
        (2, 8, None, True, (2, 8)),
        (2, 12, None, True, (2, 12)),
        (2, 99, None, True, (2, 12)),
        (2, 12, None, False, (2, None)),
        (2, 11, None, False, (2, 11)),
        (12, 2, None, True, (12, 2)),
        (8, 8, (3, 2), True, (8, 8)),
        (2, 12, (3, 2), True, (2, 12)),
        (2, 9, (3, 3), True, (2, 9)),  # a token chooses from all groups
        (2, 9, (1, 1), True, (2, 9)),
    ],
)
def test_ranks(k1: int, k2: int, groups: Any, renormalises: bool, wanted: Any) -> None:
    block = ServedBlock(k1=k1, k2=k2)
    assert ranks(block, experts=12, groups=groups, renormalises=renormalises) == wanted


def test_groups_without_a_bias_leave_the_others_no_mass() -> None:
    """vLLM gives experts of other groups −inf then, which no sum takes."""
    block = ServedBlock(k1=2, k2=12)
    found = ranks(block, experts=12, groups=(3, 2), renormalises=True, biased=False)
    assert found == (2, 8)


@pytest.mark.parametrize(
    ("k1", "k2", "groups"), [(13, 13, None), (9, 12, (3, 2)), (2, 9, (3, 2)), (2, 11, (3, 2))]
)
def test_ranks_that_no_router_has(k1: int, k2: int, groups: Any) -> None:
    with pytest.raises(UnsupportedModelError, match=r"again|--k2 8 or --k2 12"):
        ranks(ServedBlock(k1=k1, k2=k2), experts=12, groups=groups, renormalises=True)


def test_a_config_states_another_count_for_a_while() -> None:
    outer = SimpleNamespace(num_experts=6, num_local_experts=6, moe_num_experts=99)
    inner = SimpleNamespace(n_routed_experts=6)
    with pytest.raises(KeyError), stating([outer, inner, outer], 4, widest=6):
        assert outer == SimpleNamespace(num_experts=4, num_local_experts=4, moe_num_experts=99)
        assert inner == SimpleNamespace(n_routed_experts=4)
        raise KeyError
    assert outer == SimpleNamespace(num_experts=6, num_local_experts=6, moe_num_experts=99)
    assert inner == SimpleNamespace(n_routed_experts=6)
