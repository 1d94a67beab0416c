"""--batch-size auto: the largest power of two that fits, tried no further than needed."""

from typing import Any

import pytest

from moeprune.evaluate.batch_size import LARGEST, auto, largest
from moeprune.evaluate.batching import DEFAULT_TOKENS, Room
from moeprune.observe.load import load_causal_lm


@pytest.mark.parametrize("limit", [0, 1, 700, 8191, 8192, 20_000, 1 << 16, 1 << 30])
@pytest.mark.parametrize("total", [100, 8192, 50_000, 1 << 40])
def test_the_largest_that_fits(limit: int, total: int) -> None:
    tried: list[int] = []

    def fits(tokens: int) -> bool:
        tried.append(tokens)
        return tokens <= limit

    found = largest(fits, total=total)
    sizes = [1 << power for power in range(60)]
    allowed = [size for size in sizes if size <= max(limit, 1) and size <= LARGEST]
    if limit < DEFAULT_TOKENS:
        assert found == max(allowed)
    else:
        # More than there is to read is not tried; what is tried first may be.
        wanted = min(size for size in [*sizes[13:]] if size >= total)
        assert found == min(max(allowed), max(wanted, DEFAULT_TOKENS))
    assert sum(size > limit for size in tried) <= max(1, len([s for s in tried if s <= 8192]))
    assert tried == sorted(tried) or limit < DEFAULT_TOKENS


def test_on_a_cpu_nothing_is_tried(tiny: Any) -> None:
    model = load_causal_lm(tiny("qwen3_moe"))
    model.forward = None
    assert auto(model, (), max_new_tokens=9) == Room() == Room.of(None)
    assert Room.of(3) == Room(rows=3, tokens=1 << 62)
    assert Room.of(Room(tokens=5)) == Room(tokens=5)
