"""Comparing logits: infinities, NaN, shapes; prompts are seeded."""

import pytest
import torch

from moeprune.evaluate.logits import compare_logits, random_prompts


def test_difference_scale_and_argmax() -> None:
    mine = [torch.tensor([[1.0, -20.0, 3.0], [0.0, 1.0, 2.0]])]
    theirs = [torch.tensor([[1.0, -20.0, 3.5], [0.0, 2.5, 2.0]])]
    found = compare_logits(mine, theirs)
    assert found.largest == 1.5
    assert found.scale == 20.0
    assert found.same_argmax == 0.5
    assert found.positions == 2
    assert found.within(0.1) and not found.within(0.07)


def test_equal_infinities_do_not_differ() -> None:
    row = [torch.tensor([[-torch.inf, 1.0]])]
    assert compare_logits(row, row).largest == 0.0


@pytest.mark.parametrize("value", [torch.nan, torch.inf])
def test_nan_or_one_sided_infinity_never_passes(value: float) -> None:
    mine = [torch.tensor([[0.0, 1.0]])]
    found = compare_logits(mine, [torch.tensor([[value, 1.0]])])
    assert not found.within(1e9)
    assert not compare_logits([torch.tensor([[value, 1.0]])], mine).within(1e9)


def test_prompts_are_seeded_and_in_range() -> None:
    one = random_prompts(50, count=3, length=7, seed=1)
    assert one == random_prompts(50, count=3, length=7, seed=1)
    assert one != random_prompts(50, count=3, length=7, seed=2)
    assert all(len(row) == 7 and all(0 <= token < 50 for token in row) for row in one)
