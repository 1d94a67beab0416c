"""A text's first tokens from its beginning are those of the whole text, tokenizer by tokenizer."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)
from transformers import PreTrainedTokenizerFast
from transformers.models.qwen2.tokenization_qwen2 import PRETOKENIZE_REGEX as QWEN2
from transformers.models.qwen3_5.tokenization_qwen3_5 import PRETOKENIZE_REGEX as QWEN3_5

from moeprune.observe.beginnings import first_ids, works_by_pieces

O200K = "|".join(
    [
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]*[\p{Ll}\p{Lm}\p{Lo}\p{M}]+"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"[^\r\n\p{L}\p{N}]?[\p{Lu}\p{Lt}\p{Lm}\p{Lo}\p{M}]+[\p{Ll}\p{Lm}\p{Lo}\p{M}]*"
        r"(?i:'s|'t|'re|'ve|'m|'ll|'d)?",
        r"\p{N}{1,3}",
        r" ?[^\s\p{L}\p{N}]+[\r\n/]*",
        r"\s*[\r\n]+",
        r"\s+(?!\S)",
        r"\s+",
    ]
)
LLAMA3 = QWEN2.replace(r"|\p{N}|", r"|\p{N}{1,3}|")
PATTERNS = {"gpt2": None, "qwen2": QWEN2, "qwen3_5": QWEN3_5, "llama3": LLAMA3, "o200k": O200K}
CORPUS = [
    "The mill stood where the stream left the wood; they'll say it's 1234 years old.\n\n\tDon't!",
    "def f(x):\n    return  x + 1\r\n\r\n# 漢字 と かな, ÜBER naïve café 😀😀 e\u0301 don'T I'LL",
    "  many   spaces\u00a0and\u2028breaks 3.14159, 10,000 <b>tags</b> a's b'll c'd\n\n\n end",
]
SPACES = ["  ", "   ", "\n\n", "<|im_start|>", "<|end|>", "sonder"]


def split_of(pattern: str | None) -> Any:
    if pattern is None:
        return pre_tokenizers.ByteLevel(add_prefix_space=False)
    cut = pre_tokenizers.Split(Regex(pattern), behavior="isolated")
    return pre_tokenizers.Sequence(
        [cut, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)]
    )


def trained(pre: Any, *, normalizer: Any = None, ends: bool = False) -> PreTrainedTokenizerFast:
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre
    if normalizer is not None:
        tokenizer.normalizer = normalizer
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=700, initial_alphabet=alphabet, show_progress=False)
    tokenizer.train_from_iterator(CORPUS * 20, trainer)
    special = [AddedToken(text, rstrip=text == "<|end|>", normalized=False) for text in SPACES]
    tokenizer.add_tokens([*special[:3], AddedToken("sonder", single_word=True)])
    tokenizer.add_special_tokens(special[3:5])
    if ends:
        first, last = (tokenizer.token_to_id(text) for text in SPACES[3:5])
        tokenizer.post_processor = processors.TemplateProcessing(
            single="<|im_start|> $A <|end|>",
            special_tokens=[("<|im_start|>", first), ("<|end|>", last)],
        )
    return PreTrainedTokenizerFast(tokenizer_object=tokenizer)


def ids_of(tokenizer: Any, seen: list[int]) -> Any:
    def ids(text: str) -> np.ndarray:
        seen.append(len(text))
        return np.asarray(tokenizer(text, verbose=False)["input_ids"], np.int32)

    return ids


WORDS = [word for text in CORPUS for word in text.split(" ")]
PIECES = st.one_of(
    st.sampled_from(
        [*WORDS, *SPACES, " ", "\n", "a b", "x\ny", "中 文", "'", "'l l", "son der", "1"]
    ),
    st.text(max_size=4),
)
TEXTS = st.lists(PIECES, min_size=30, max_size=120).flatmap(
    lambda pieces: st.sampled_from(["", " ", "\n"]).map(lambda gap: gap.join(pieces))
)


@pytest.fixture(scope="module", params=sorted(PATTERNS))
def tokenizer(request: pytest.FixtureRequest) -> Any:
    nfc = normalizers.NFC() if "qwen" in request.param else None
    return trained(
        split_of(PATTERNS[request.param]), normalizer=nfc, ends=request.param in ("gpt2", "llama3")
    )


@settings(max_examples=150, deadline=None)
@given(text=TEXTS, length=st.integers(1, 12), spare=st.integers(5, 60))
def test_a_beginning_has_the_first_tokens_of_the_whole(
    tokenizer: Any, text: str, length: int, spare: int
) -> None:
    text = text.encode("utf-8", "replace").decode()
    whole = np.asarray(tokenizer(text, verbose=False)["input_ids"], np.int32)
    found = first_ids(text, length, tokenizer=tokenizer, ids_of=ids_of(tokenizer, []), spare=spare)
    np.testing.assert_array_equal(found, whole[:length])


@settings(max_examples=100, deadline=None)
@given(text=TEXTS, length=st.integers(1, 12))
def test_every_place_that_may_be_cut_is_an_end_of_tokens(
    tokenizer: Any, text: str, length: int
) -> None:
    """Not only where the search for a place happens to stop."""
    from moeprune.observe.beginnings import _PLACE

    text = text.encode("utf-8", "replace").decode()
    plain = {"add_special_tokens": False, "verbose": False}
    whole = tokenizer(text, **plain)["input_ids"]
    for place in _PLACE.finditer(text):
        part = tokenizer(text[: place.end()], **plain)["input_ids"]
        assert whole[: len(part)] == part


def test_a_long_text_is_not_read_whole(tokenizer: Any) -> None:
    assert works_by_pieces(tokenizer)
    text = " ".join(CORPUS * 400)
    seen: list[int] = []
    found = first_ids(text, 100, tokenizer=tokenizer, ids_of=ids_of(tokenizer, seen))
    assert found.size == 100 and len(seen) == 1 and seen[0] < 5000 < len(text)
    whole = np.asarray(tokenizer(text, verbose=False)["input_ids"], np.int32)
    np.testing.assert_array_equal(found, whole[:100])


def test_text_with_few_tokens_or_no_place_is_read_further(tokenizer: Any) -> None:
    for text in ("a " + "漢字漢字 " * 10 + "z" * 50_000 + " a b", "." * 30_000, "sonder " * 9000):
        whole = np.asarray(tokenizer(text, verbose=False)["input_ids"], np.int32)
        found = first_ids(text, 500, tokenizer=tokenizer, ids_of=ids_of(tokenizer, []), spare=50)
        np.testing.assert_array_equal(found, whole[:500])


def test_a_token_after_the_text_is_not_taken_for_its_next(tokenizer: Any) -> None:
    """Some 8 characters a token, so that beginnings have just the number of tokens asked for."""
    text = ("<|im_start|>" * 5 + "a b") * 300
    whole = np.asarray(tokenizer(text, verbose=False)["input_ids"], np.int32)
    for length in range(1, 150):
        for spare in (80, 120, 160, 200):
            found = first_ids(
                text, length, tokenizer=tokenizer, ids_of=ids_of(tokenizer, []), spare=spare
            )
            np.testing.assert_array_equal(found, whole[:length])


def test_other_tokenizers_read_the_whole_text() -> None:
    metaspace = pre_tokenizers.Metaspace()
    strange = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(QWEN2 + "|x(?=.*y)"), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    spanning = trained(split_of(None))
    spanning.add_tokens(["sonder zug"])
    dropping = trained(split_of(None))
    dropping.backend_tokenizer.model.dropout = 0.1
    for tokenizer in (
        trained(metaspace),
        trained(strange),
        trained(split_of(QWEN2), normalizer=normalizers.NFKC()),
        spanning,
        dropping,
    ):
        assert not works_by_pieces(tokenizer)
        seen: list[int] = []
        text = " ".join(CORPUS * 400)
        first_ids(text, 10, tokenizer=tokenizer, ids_of=ids_of(tokenizer, seen))
        assert seen == [len(text)]
    assert not works_by_pieces(object())
