"""The cache of hidden states: bounded, exact, and kind to retained genomes."""

from __future__ import annotations

from typing import Any

import torch
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.fitness import Counts
from moeprune.evaluate.states import StateCache, copied, num_bytes

LENGTHS = (0, 1, 3)  # rows before each layer: two rows lie in one layer
SIZE = 40


def state_of(prefix: Counts, batch: int) -> torch.Tensor:
    return torch.tensor([*prefix, batch, 0, 0, 0, 0][:5], dtype=torch.float64)


genome = st.tuples(*[st.integers(0, 2)] * 4)
action = st.one_of(
    st.tuples(st.just("score"), genome, st.integers(0, 2)),
    st.tuples(st.just("retain"), st.lists(genome, max_size=3)),
)


@given(limit=st.integers(0, 12).map(lambda n: n * SIZE + 7), actions=st.lists(action, max_size=40))
def test_never_more_than_the_limit_and_never_a_wrong_state(
    limit: int, actions: list[tuple[Any, ...]]
) -> None:
    cache = StateCache(limit, lengths=LENGTHS)
    for kind, *rest in actions:
        if kind == "retain":
            cache.retain(rest[0])
            continue
        counts, batch = rest
        cache.begin()
        found = cache.deepest(counts, batch)
        start = -1
        if found is not None:
            start, state = found
            assert torch.equal(state, state_of(counts[: LENGTHS[start]], batch))
        for index in range(start + 1, len(LENGTHS)):
            cache.put(counts, index, batch, state_of(counts[: LENGTHS[index]], batch))
        held = [*cache._kept.values(), *cache._loose.values()]
        assert cache.nbytes == sum(entry.state.nbytes for entry in held) <= limit
        assert cache.most <= limit


def fill(cache: StateCache, counts: Counts) -> None:
    cache.begin()
    found = cache.deepest(counts, 0)
    for index in range(-1 if found is None else found[0], len(LENGTHS)):
        if index >= 0:
            cache.put(counts, index, 0, state_of(counts[: LENGTHS[index]], 0))


def test_a_genome_that_begins_alike_finds_the_deepest_state() -> None:
    cache = StateCache(10**6, lengths=LENGTHS)
    for index, length in enumerate(LENGTHS):
        cache.put((1, 2, 3, 4), index, 0, state_of((1, 2, 3, 4)[:length], 0))
    assert [cache.deepest(each, 0)[0] for each in ((1, 2, 3, 9), (1, 2, 9, 4), (9, 2, 3, 4))] == [  # type: ignore[index]
        2,
        1,
        0,
    ]
    assert cache.deepest((1, 2, 3, 4), 1) is None  # another batch
    assert cache.nbytes == 3 * SIZE


def test_the_longest_unused_goes_first_and_what_is_retained_stays() -> None:
    # Room for () and two states each of three genomes.
    cache = StateCache(7 * SIZE, lengths=LENGTHS)
    first, second, third, fourth = (0, 0, 0, 0), (1, 1, 1, 1), (2, 2, 2, 2), (3, 3, 3, 3)
    for each in (first, second, third):
        fill(cache, each)
    assert cache.nbytes == 7 * SIZE
    cache.retain([first])
    fill(cache, fourth)  # pushes out the second, which is older than the third
    assert cache.deepest(first, 0)[0] == 2  # type: ignore[index]
    assert cache.deepest(second, 0)[0] == 0  # type: ignore[index]
    assert cache.deepest(third, 0)[0] == 2  # type: ignore[index]
    assert cache.deepest(fourth, 0)[0] == 2  # type: ignore[index]
    cache.retain([first, third, fourth])
    fill(cache, second)  # everything there is retained: not kept
    assert cache.deepest(second, 0)[0] == 0  # type: ignore[index]
    cache.retain([])
    fill(cache, second)
    assert cache.deepest(second, 0)[0] == 2  # type: ignore[index]


def test_a_genome_does_not_push_out_its_own_states() -> None:
    cache = StateCache(2 * SIZE, lengths=(1, 2, 3))
    cache.begin()
    for index in range(3):
        cache.put((1, 2, 3), index, 0, state_of((1, 2, 3)[: index + 1], 0))
    assert cache.deepest((1, 2, 3), 0)[0] == 1  # type: ignore[index]


def test_states_are_copied_whole() -> None:
    hidden, more = torch.ones(2, 3), torch.zeros(4, dtype=torch.int16)
    state = (hidden, [more, None], "aside")
    copy = copied(state)
    assert num_bytes(state) == num_bytes(copy) == 24 + 8
    hidden += 1
    more += 1
    assert copy[0].tolist() == torch.ones(2, 3).tolist() and copy[1][0].tolist() == [0] * 4
    assert copy[1][1] is None and copy[2] == "aside" and type(copy) is tuple
    cache = StateCache(1000, lengths=(0,))
    cache.put((), 0, 0, state)
    hidden += 1
    assert cache.deepest((), 0)[1][0].tolist() == torch.full((2, 3), 2.0).tolist()  # type: ignore[index]
