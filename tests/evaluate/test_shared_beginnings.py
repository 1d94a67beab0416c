"""What many questions begin with is read once, by models that go on from it, and by no other."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.tasks import Question
from moeprune.evaluate.batching import Room, batches, clusters
from moeprune.evaluate.beginnings import common_size, worth
from moeprune.evaluate.encoding import Ids
from moeprune.evaluate.forward import Forward
from moeprune.evaluate.lines import Found, Row, shared_rows
from moeprune.evaluate.requests import Piece, Request
from moeprune.observe.load import load_causal_lm


def pieces(number: int, *, begin: int = 300, seed: int = 0) -> list[Piece]:
    """Contexts of different lengths after the same ``begin`` tokens."""
    draw = np.random.default_rng(seed)
    first = draw.integers(0, 255, begin, dtype=np.int32)
    made = []
    for at in range(number):
        rest = draw.integers(0, 255, 3 + 7 * at % 23, dtype=np.int32)
        ending = draw.integers(0, 255, 1 + at % 5, dtype=np.int32)
        made.append(Piece(context=np.concatenate([first, rest]), continuation=ending))
    return made


@contextmanager
def tokens_read(model: Any) -> Iterator[list[int]]:
    """Positions that each pass of the model reads."""
    seen: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: seen.append(kwargs["input_ids"].numel()), with_kwargs=True
    )
    try:
        yield seen
    finally:
        hook.remove()


def plain(model: Any, rows: Sequence[Row]) -> list[Found]:
    """Row by row, so that nothing is common."""
    return [found for row in rows for found in Forward(model).run([row])]


def check(found: Sequence[Found], want: Sequence[Found]) -> None:
    for mine, other in zip(found, want, strict=True):
        np.testing.assert_allclose(mine.logprob, other.logprob, rtol=0, atol=2e-5)
        assert mine.piece == other.piece and (mine.greedy == other.greedy).all()


GOING_ON = ["qwen3_moe", "olmoe", "gpt_oss", "deepseek_v3", "granitemoe", "llama4_text"]


@pytest.mark.parametrize("family", GOING_ON)
def test_a_common_beginning_is_read_once(family: str, tiny: Any) -> None:
    model = load_causal_lm(tiny(family))
    forward, rows = Forward(model), shared_rows(pieces(9))
    want = plain(model, rows)
    with tokens_read(model) as seen:
        check(forward.run(rows), want)
        # The trial: the beginning, two rows from there, and two whole ones. Then all from there.
        width = max(row.ids.size for row in rows)
        assert seen[0] == 300 and seen[-1] == 9 * (width - 300) and len(seen) == 4
        seen.clear()
        check(forward.run(rows[:6]), want[:6])
        assert len(seen) == 1  # it was kept
        seen.clear()
        others = shared_rows(pieces(9, seed=1))
        check(forward.run(others), plain(model, others))
        assert seen[0] == 300 and seen[1] == 9 * (max(row.ids.size for row in others) - 300)
        # Again the first: what was kept is of one beginning at a time, and still whole.
        check(forward.run(rows), want)


def test_one_that_cannot_go_on_reads_everything(tiny: Any) -> None:
    model = load_causal_lm(tiny("qwen3_5_moe"))
    forward, rows = Forward(model), shared_rows(pieces(9))
    want = plain(model, rows)
    check(forward.run(rows), want)
    with tokens_read(model) as seen:
        check(forward.run(rows), want)
        assert seen == [9 * max(row.ids.size for row in rows)]


def test_one_that_silently_forgets_reads_everything(tiny: Any) -> None:
    model = load_causal_lm(tiny("qwen3_moe"))
    rows = shared_rows(pieces(9))
    want = plain(model, rows)
    own = model.model.forward

    def forgets(*args: Any, **kwargs: Any) -> Any:
        name = "cache" if "cache" in kwargs else "past_key_values"
        if kwargs.get(name) is not None:  # what came before counts for nothing
            kwargs = {**kwargs, name: None, "attention_mask": None}
        return own(*args, **kwargs)

    model.model.forward = forgets
    forward = Forward(model)
    for _ in range(2):
        check(forward.run(rows), want)


def test_little_is_not_read_apart(tiny: Any) -> None:
    model = load_causal_lm(tiny("qwen3_moe"))
    for begin, number in ((40, 9), (300, 3), (0, 9)):
        rows = shared_rows(pieces(number, begin=begin))
        with tokens_read(model) as seen:
            Forward(model).run(rows)
        assert len(seen) == 1


ids = st.lists(st.integers(0, 2), min_size=1, max_size=9).map(lambda row: np.array(row, np.int32))


@given(rows=st.lists(ids, min_size=1, max_size=5))
def test_common_size_is_the_longest_common_beginning(rows: list[Ids]) -> None:
    size = common_size(rows)
    lists = [row.tolist() for row in rows]
    assert all(row[:size] == lists[0][:size] for row in lists)
    if all(len(row) > size for row in lists):
        assert len({tuple(row[: size + 1]) for row in lists}) > 1
    assert worth(5000, [np.zeros(6000, np.int32)] * 2) and not worth(9, rows)


def requests() -> list[Request]:
    """Three domains: two with shots of their own, one with too few questions; and mixed up."""
    made = []
    for domain, number, seed in (("math", 30, 1), ("law", 20, 2), ("art", 5, 3)):
        for at, piece in enumerate(pieces(number, seed=seed)):
            question = Question(id=f"{domain}{at}", domain=domain, text="")
            made.append(Request(question=question, pieces=(piece,)))
    made += [
        Request(question=Question(id=f"x{at}", domain="x", text=""), pieces=(piece,))
        for at, piece in enumerate(pieces(30, begin=0, seed=4))
    ]
    return [made[at] for at in np.random.default_rng(0).permutation(len(made))]


def test_questions_that_begin_alike_stand_together() -> None:
    asked = requests()
    found = [{asked[n].question.domain for n in cluster} for cluster in clusters(asked)]
    assert sorted(map(sorted, found)) == [["art", "x"], ["law"], ["math"]]
    assert asked[clusters(asked)[0][0]].size == max(request.size for request in asked)
    made = list(batches(asked, Room(rows=8, tokens=1 << 40), equal_lengths=False))
    assert sorted(number for batch in made for number in batch) == list(range(len(asked)))
    together = [{asked[n].question.domain for n in batch} for batch in made]
    assert all(len(domains) == 1 or domains == {"art", "x"} for domains in together)
    again = asked[::-1]
    other = list(batches(again, Room(rows=8, tokens=1 << 40), equal_lengths=False))
    assert [[asked[n].key for n in batch] for batch in made] == [
        [again[n].key for n in batch] for batch in other
    ]


def test_what_is_kept_is_not_changed_by_who_goes_on(tiny: Any) -> None:
    model = load_causal_lm(tiny("gpt_oss"))
    forward, rows = Forward(model), shared_rows(pieces(9))
    first = forward.run(rows)
    for _ in range(3):
        for mine, other in zip(forward.run(rows), first, strict=True):
            assert torch.equal(torch.tensor(mine.logprob), torch.tensor(other.logprob))
