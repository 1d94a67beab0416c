"""plan --target: what a runtime cannot load is refused before the export."""

from __future__ import annotations

from dataclasses import replace

import pytest
import synthetic

import moeprune
from moeprune.core.targets import ANY, PADDABLE, TARGETS, check_target
from moeprune.errors import UsageError

FACTS = synthetic.facts([16, 16, 16])
GLM = replace(FACTS, model_type="glm4_moe")
GROUPED = replace(FACTS, num_groups=4, top_groups=2, top_k=2)
RUNTIMES = (*TARGETS, ANY)


@pytest.mark.parametrize("target", RUNTIMES)
def test_one_count_loads_everywhere(target: str) -> None:
    assert check_target(target, FACTS, [8, 8, 8]) is None
    assert check_target(target, GLM, [8, 8, 8]) is None
    assert check_target(target, GROUPED, [8, 8, 8]) is None


@pytest.mark.parametrize("target", RUNTIMES)
def test_different_counts(target: str) -> None:
    counts = [8, 6, 7]
    if target == "transformers":
        warning = check_target(target, FACTS, counts)
        assert warning and "--per-layer" in warning and "--pad" not in warning
        both = check_target(target, GLM, counts)
        assert both and "--per-layer" in both and "--pad" in both
        return
    with pytest.raises(UsageError, match=r"one expert count.*6 to 8.*--allocation uniform"):
        check_target(target, FACTS, counts)
    warning = check_target(target, GLM, counts)
    assert warning and "--pad" in warning and "up to 8" in warning
    grouped = replace(GROUPED, model_type="glm4_moe")
    with pytest.raises(UsageError, match="4 router groups"):
        check_target(target, grouped, [8, 12, 8])


@pytest.mark.parametrize("target", ["llama.cpp", ANY])
def test_limits_of_llama_cpp(target: str) -> None:
    wide = synthetic.facts([2048, 2048])
    assert check_target(target, wide, [1024, 1024]) is None
    with pytest.raises(UsageError, match=r"llama\.cpp loads at most 1024 .* keeps 1025"):
        check_target(target, wide, [1025, 1025])
    assert check_target("vllm", wide, [1025, 1025]) is None
    with pytest.raises(UsageError, match="more than 4 experts"):
        check_target(target, GROUPED, [4, 4, 4])
    assert check_target("vllm", GROUPED, [4, 4, 4]) is None


@pytest.mark.parametrize("target", RUNTIMES)
def test_a_plan_by_hand(target: str) -> None:
    with pytest.raises(UsageError, match="each token runs"):
        check_target(target, FACTS, [FACTS.top_k - 1] * 3)
    with pytest.raises(UsageError, match="4 groups"):
        check_target(target, GROUPED, [7, 7, 7])


def test_unknown_target() -> None:
    with pytest.raises(UsageError, match="Did you mean 'vllm'"):
        check_target("vlm", FACTS, [8, 8, 8])
    with pytest.raises(UsageError, match="no target named"):
        moeprune.plan(synthetic.stats(FACTS), ratio=0.25, target="ollama")


def test_the_plan_says_it() -> None:
    stats = synthetic.stats(FACTS)
    options = {"ratio": 0.3, "method": "reap", "allocation": "global"}
    plan = moeprune.plan(stats, **options)
    assert plan.uniform_count is None and "target" not in plan.options
    with pytest.raises(UsageError, match="--target vllm"):
        moeprune.plan(stats, target="vllm", **options)
    aimed = moeprune.plan(stats, target="transformers", **options)
    assert aimed.options["target"] == "transformers" and aimed.keep == plan.keep
    assert "--per-layer" in aimed.warnings[-1]
    even = moeprune.plan(stats, target="any", ratio=0.3)
    assert not any("per-layer" in warning for warning in even.warnings)


def test_names_of_families_are_names_of_families() -> None:
    from moeprune.architectures import family_names

    assert set(family_names()) >= PADDABLE
