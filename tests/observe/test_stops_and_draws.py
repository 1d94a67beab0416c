"""Completions that end at texts, and draws that depend on a name and nothing else."""

import hashlib
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from moeprune.observe.decoding import Completion, Decoding
from moeprune.observe.domains import Ids
from moeprune.observe.generate import generate
from moeprune.observe.load import load_causal_lm, load_tokenizer
from moeprune.observe.paired_draws import uniforms

CPU = torch.device("cpu")
EVERYTHING = 1 << 40


@pytest.fixture(scope="module")
def live(tiny: Any) -> tuple[Any, Any]:
    path = tiny("qwen3_moe")
    return load_causal_lm(path), load_tokenizer(path)


def prompts(number: int = 9) -> list[Ids]:
    generator = np.random.default_rng(5)
    return [generator.integers(0, 255, 3 + 5 * at % 17, dtype=np.int32) for at in range(number)]


def written(live: tuple[Any, Any], asked: Sequence[Ids], **how: Any) -> list[Completion]:
    told = {name: how.pop(name) for name in ("ends", "names", "batch_tokens") if name in how}
    decoding = Decoding(**{"max_new_tokens": 40, **how})
    rest = {"ends": (), "batch_tokens": EVERYTHING, **told}
    return list(generate(live[0], asked, how=decoding, tokenizer=live[1], **rest))


def ascii_pair(tokenizer: Any, found: Sequence[Completion]) -> str:
    """Two letters, a token each, that stand in the middle of some completion."""
    texts = [tokenizer.decode(ids) for one in found for ids in pairwise(one.ids[9:])]
    return next(text for text in texts if text.isascii() and text.isprintable())


@pytest.mark.parametrize("batch_tokens", [1, 130, EVERYTHING])
def test_a_row_ends_with_the_token_that_completes_a_stop_text(
    batch_tokens: int, live: tuple[Any, Any]
) -> None:
    asked = prompts()
    free = written(live, asked)
    stop = (ascii_pair(live[1], free), "nowhere to be found")
    found = written(live, asked, stop=stop, batch_tokens=batch_tokens)
    ended = 0
    for one, whole in zip(found, free, strict=True):
        lengths = [
            length
            for length in range(1, whole.ids.size + 1)
            if any(text in live[1].decode(whole.ids[:length]) for text in stop)
        ]
        ended += bool(lengths)
        assert one.ids.tolist() == whole.ids[: min(lengths, default=40)].tolist()
        assert one.finished == bool(lengths)
    assert 1 <= ended < len(asked)


def test_end_tokens_and_stop_texts_end_whichever_comes_first(live: tuple[Any, Any]) -> None:
    asked = prompts()
    free = written(live, asked)
    end, stop = int(free[0].ids[12]), ascii_pair(live[1], free)
    found = written(live, asked, stop=(stop,), ends=(end,))
    by_end, by_stop = written(live, asked, ends=(end,)), written(live, asked, stop=(stop,))
    for one, other, third in zip(found, by_end, by_stop, strict=True):
        shorter = min(other, third, key=lambda completion: completion.ids.size)
        assert one.ids.tolist() == shorter.ids.tolist()
        assert one.finished == (other.finished or third.finished)
    assert {one.ids.size < 40 for one in found} == {True, False}


def test_a_special_token_is_a_stop_text_by_its_name(live: tuple[Any, Any]) -> None:
    model, tokenizer = live
    asked = prompts(3)
    free = written(live, asked)
    token = int(free[1].ids[6])
    own = model.lm_head.weight.detach().clone()
    try:
        with torch.no_grad():  # what was the most probable token now is <|im_end|>
            model.lm_head.weight[[token, 259]] = model.lm_head.weight[[259, token]]
        found = written(live, asked, stop=("<|im_end|>",))
    finally:
        with torch.no_grad():
            model.lm_head.weight.copy_(own)
    assert tokenizer.decode([259]) == "<|im_end|>"
    assert found[1].finished and found[1].ids[-1] == 259 and 259 not in found[1].ids[:-1]


def test_named_draws_depend_on_name_and_step_alone(live: tuple[Any, Any]) -> None:
    asked = prompts()
    names = [f"seed 1\nq{at}" for at in range(len(asked))]
    how = {"temperature": 1.0}
    want = [one.ids.tolist() for one in written(live, asked, names=names, **how)]
    for batch_tokens in (1, 130):
        found = written(live, asked, names=names, batch_tokens=batch_tokens, **how)
        assert [one.ids.tolist() for one in found] == want
    turned = written(live, asked[::-1], names=names[::-1], **how)[::-1]
    assert [one.ids.tolist() for one in turned] == want
    # Another decoding seed is nothing to a name; another name is.
    again = written(live, asked, names=names, seed=9, **how)
    assert [one.ids.tolist() for one in again] == want
    others = written(live, asked, names=[f"{name}." for name in names], **how)
    assert not any(one.ids.tolist() == other for one, other in zip(others, want, strict=True))
    # Nothing is drawn at temperature 0, and next to nothing just above.
    greedy = [one.ids.tolist() for one in written(live, asked)]
    assert [one.ids.tolist() for one in written(live, asked, names=names)] == greedy
    cold = written(live, asked, names=names, temperature=1e-5)
    assert [one.ids.tolist() for one in cold] == greedy


def test_models_that_hardly_differ_draw_the_same(live: tuple[Any, Any]) -> None:
    """Common random numbers: a small change of the model changes few draws."""
    model, _ = live
    asked = [np.array([7, 8, 9], np.int32)] * 200
    names = [f"q{at}" for at in range(200)]
    how: dict[str, Any] = {"temperature": 1.0, "max_new_tokens": 1}
    first = [int(one.ids[0]) for one in written(live, asked, names=names, **how)]
    own = model.lm_head.weight.detach().clone()
    try:
        with torch.no_grad():
            model.lm_head.weight.mul_(1.02)
        paired = [int(one.ids[0]) for one in written(live, asked, names=names, **how)]
        unpaired = [
            int(one.ids[0]) for one in written(live, asked, names=[f"x{n}" for n in names], **how)
        ]
    finally:
        with torch.no_grad():
            model.lm_head.weight.copy_(own)
    same = np.mean(np.equal(first, paired))
    by_chance = np.mean(np.equal(first, unpaired))
    assert len(set(first)) > 30 and same > 0.9 > 0.5 > by_chance


def test_draws_follow_the_softmax(live: tuple[Any, Any]) -> None:
    model, number, temperature = live[0], 4000, 0.8
    with torch.inference_mode():
        logits = model(torch.tensor([[5, 6, 7]])).logits[0, -1].double()
    want = torch.softmax(logits / temperature, 0).numpy()
    asked = [np.array([5, 6, 7], np.int32)] * number
    names = [f"1\nquestion {at}" for at in range(number)]
    done = written(live, asked, names=names, temperature=temperature, max_new_tokens=1)
    counts = np.bincount([one.ids[0] for one in done], minlength=want.size)
    often = want * number >= 5
    counted = [*counts[often], counts[~often].sum()]
    due = np.array([*want[often], want[~often].sum()]) * number
    assert often.sum() > 50
    assert stats.chisquare(counted, due).pvalue > 1e-3


def test_uniform_numbers_are_uniform_and_apart() -> None:
    drawn = uniforms("a", 0, 50_000, device=CPU).numpy()
    assert drawn.dtype == np.float64 and drawn.min() > 0 and drawn.max() < 1
    assert stats.kstest(drawn, "uniform").pvalue > 1e-3
    others = [uniforms("a", 1, 50_000, device=CPU), uniforms("b", 0, 50_000, device=CPU)]
    for other in others:
        assert abs(np.corrcoef(drawn, other.numpy())[0, 1]) < 0.02
    assert abs(np.corrcoef(drawn[1:], drawn[:-1])[0, 1]) < 0.02
    # The numbers of a token are those of any step, too: over names and steps at one token.
    over = [float(uniforms(f"q{at % 50}", at // 50, 3, device=CPU)[2]) for at in range(2000)]
    assert stats.kstest(over, "uniform").pvalue > 1e-3
    # Never changed: answers of an earlier run are compared with those of a later one.
    assert uniforms("0\nq1", 3, 300, device=CPU).tolist() == [
        ((splitmix64(b"3\n0\nq1", token) >> 11) + 0.5) * 2.0**-53 for token in range(1, 301)
    ]


def splitmix64(name: bytes, number: int) -> int:
    """The number-th output of splitmix64, seeded by the first bytes of a hash, in whole numbers."""
    mask = (1 << 64) - 1
    start = int.from_bytes(hashlib.sha256(name).digest()[:8], "little")
    bits = (start + number * 0x9E3779B97F4A7C15) & mask
    bits = ((bits ^ (bits >> 30)) * 0xBF58476D1CE4E5B9) & mask
    bits = ((bits ^ (bits >> 27)) * 0x94D049BB133111EB) & mask
    return bits ^ (bits >> 31)


@pytest.mark.parametrize("temperature", [0.0, 0.7])
def test_what_rounding_could_choose_is_written_alone(temperature: float, tiny: Any) -> None:
    """Every token has a twin in the head, and logits of a row in a batch move in the last bits."""
    model, tokenizer = load_causal_lm(tiny("qwen3_moe")), load_tokenizer(tiny("qwen3_moe"))
    with torch.no_grad():
        model.lm_head.weight[1::2] = model.lm_head.weight[::2]

    def moved(_: Any, __: Any, logits: torch.Tensor) -> torch.Tensor:
        generator = torch.Generator().manual_seed(logits.shape[0])
        noise = torch.randn(logits.shape, generator=generator)
        return logits + 1e-6 * noise * (logits.shape[0] > 1)

    asked = prompts(4)
    names = [f"q{at}" for at in range(4)]
    how: dict[str, Any] = {"temperature": temperature, "max_new_tokens": 12}
    want = written((model, tokenizer), asked, names=names, batch_tokens=1, **how)
    hook = model.lm_head.register_forward_hook(moved)
    try:
        found = written((model, tokenizer), asked, names=names, **how)
        plain = generate(
            model, asked, how=Decoding(max_new_tokens=12), ends=(), batch_tokens=EVERYTHING
        )
    finally:
        hook.remove()
    assert [one.ids.tolist() for one in found] == [one.ids.tolist() for one in want]
    # Twins of greedy decoding are ties in every step; drawn ones have luck of their own.
    if temperature == 0:
        assert [one.ids.tolist() for one in plain] != [one.ids.tolist() for one in want]


def test_few_are_written_twice(live: tuple[Any, Any]) -> None:
    model, _ = live
    passes: list[int] = []
    hook = model.register_forward_pre_hook(
        lambda _, args, kwargs: passes.append(kwargs["input_ids"].shape[0]), with_kwargs=True
    )
    try:
        found = written(live, prompts(), names=[str(at) for at in range(9)])
    finally:
        hook.remove()
    assert passes == [9] * 40 and not any(one.close for one in found)
