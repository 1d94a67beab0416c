"""From sources to numbered token ids: names, cuts, samples, shards, hashes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import add_tokenizer

from moeprune.errors import CheckpointError, DomainError, UsageError
from moeprune.observe.domains import read_corpus
from moeprune.observe.named import named_domains, parse_domain
from moeprune.observe.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(add_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def jsonl(path: Path, texts: list[str]) -> str:
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))
    return str(path)


def decoded(tokenizer: Any, corpus: Any) -> list[str]:
    return [tokenizer.decode(ids.tolist()) for ids in corpus.documents]


def test_documents_are_cut_to_their_first_tokens(tokenizer: Any, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ["abcdefgh", "ab", "xyz" * 9])
    corpus = read_corpus("d", source, tokenizer=tokenizer, length=4)
    assert decoded(tokenizer, corpus) == ["abcd", "ab", "xyzx"]
    assert (corpus.total, corpus.numbers, corpus.num_tokens) == (3, (0, 1, 2), 10)
    assert all(ids.dtype == np.int32 for ids in corpus.documents)


def test_running_text_is_cut_into_pieces_and_loses_nothing(tokenizer: Any, tmp_path: Path) -> None:
    text = "The first line.\n\nÜber the second, with 漢字 in it. " * 7
    (tmp_path / "long.txt").write_text(text, encoding="utf-8")
    corpus = read_corpus("d", str(tmp_path / "long.txt"), tokenizer=tokenizer, length=50)
    whole = np.concatenate(corpus.documents)
    assert tokenizer.decode(whole.tolist()) == text
    assert {ids.size for ids in corpus.documents[:-1]} == {50}


def test_pieces_of_a_running_text_begin_with_the_begin_token(tmp_path: Path) -> None:
    from tokenizers import processors

    tokenizer = load_tokenizer(add_tokenizer(tmp_path))
    tokenizer.bos_token = "<|im_start|>"
    tokenizer.backend_tokenizer.post_processor = processors.TemplateProcessing(
        single="<|im_start|> $A", special_tokens=[("<|im_start|>", 258)]
    )
    (tmp_path / "t.txt").write_text("abcdefg")
    corpus = read_corpus("d", str(tmp_path / "t.txt"), tokenizer=tokenizer, length=4)
    assert [ids.tolist()[0] for ids in corpus.documents] == [258, 258, 258]
    assert [ids.size for ids in corpus.documents] == [4, 4, 2]
    one = read_corpus("d", jsonl(tmp_path / "t.jsonl", ["abcdefg"]), tokenizer=tokenizer, length=4)
    assert one.documents[0].tolist() == corpus.documents[0].tolist()


def test_chats_use_the_tokenizers_template(tokenizer: Any, tmp_path: Path) -> None:
    row = {"messages": [{"role": "user", "content": "hé"}, {"role": "assistant", "content": "ok"}]}
    (tmp_path / "chat.jsonl").write_text(json.dumps(row))
    corpus = read_corpus("d", str(tmp_path / "chat.jsonl"), tokenizer=tokenizer, length=99)
    wanted = "<|im_start|>user\nhé<|im_end|>\n<|im_start|>assistant\nok<|im_end|>\n"
    assert decoded(tokenizer, corpus) == [wanted]
    assert corpus.documents[0][0] == 258  # the special token, not its letters


def test_a_template_that_writes_the_date_writes_the_same_on_any_day(tmp_path: Path) -> None:
    """As those of GPT-OSS and Llama 4 do."""
    tokenizer = load_tokenizer(add_tokenizer(tmp_path))
    tokenizer.chat_template = (
        "{% macro system() %}{{ strftime_now('%Y-%m-%d') }}{% endmacro %}{{ system() }} "
        '{% if strftime_now is defined %}{% set day = strftime_now( "%d %b %Y" ) %}{% endif %}'
        "{{ day }} {{ messages[0].content }}"
    )
    before = tokenizer.chat_template
    path = tmp_path / "c.jsonl"
    path.write_text(json.dumps({"messages": [{"role": "user", "content": "strftime_now('%Y')"}]}))
    corpus = read_corpus("d", str(path), tokenizer=tokenizer, length=99)
    text = tokenizer.decode(corpus.documents[0].tolist())
    assert text == "2025-01-01 01 Jan 2025 strftime_now('%Y')"
    assert tokenizer.chat_template == before


def test_chats_that_the_template_cannot_render_name_the_line(tmp_path: Path) -> None:
    tokenizer = load_tokenizer(add_tokenizer(tmp_path))
    (tmp_path / "c.jsonl").write_text(json.dumps({"messages": [{"role": "user"}]}))
    tokenizer.chat_template = "{{ raise_exception('roles must alternate') }}"
    with pytest.raises(DomainError, match=r"c\.jsonl, line 1: .*roles must alternate"):
        read_corpus("d", str(tmp_path / "c.jsonl"), tokenizer=tokenizer, length=9)
    tokenizer.chat_template = None
    with pytest.raises(DomainError, match=r"line 1 holds 'messages', but .* no chat template"):
        read_corpus("d", str(tmp_path / "c.jsonl"), tokenizer=tokenizer, length=9)
    tokenizer.chat_template = "{{ 1 % 0 }}"
    with pytest.raises(DomainError, match=r"c\.jsonl, line 1: .* template .*zero"):
        read_corpus("d", str(tmp_path / "c.jsonl"), tokenizer=tokenizer, length=9)


@given(count=st.integers(1, 30), samples=st.integers(1, 40), seed=st.integers(0, 5))
def test_samples_are_a_seeded_subset_in_order(
    tokenizer: Any,
    tmp_path_factory: pytest.TempPathFactory,
    count: int,
    samples: int,
    seed: int,
) -> None:
    source = jsonl(tmp_path_factory.getbasetemp() / "s.jsonl", [f"{i:03}" for i in range(count)])
    options: dict[str, Any] = {"tokenizer": tokenizer, "length": 9, "samples": samples}
    chosen = decoded(tokenizer, read_corpus("d", source, seed=seed, **options))
    assert len(chosen) == min(count, samples)
    assert chosen == sorted(set(chosen))
    assert chosen == decoded(tokenizer, read_corpus("d", source, seed=seed, **options))


def test_the_draw_never_changes(tokenizer: Any, tmp_path: Path) -> None:
    """The same seed draws the same documents with every numpy: pinned."""
    source = jsonl(tmp_path / "s.jsonl", [f"{i:03}" for i in range(40)])
    corpus = read_corpus("d", source, tokenizer=tokenizer, length=9, samples=4, seed=7)
    assert decoded(tokenizer, corpus) == ["017", "018", "034", "037"]


def test_samples_depend_on_the_seed(tokenizer: Any, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "s.jsonl", [f"{i:03}" for i in range(40)])
    drawn = {
        tuple(
            decoded(
                tokenizer,
                read_corpus("d", source, tokenizer=tokenizer, length=9, samples=5, seed=seed),
            )
        )
        for seed in range(6)
    }
    assert len(drawn) > 3


@given(count=st.integers(1, 25), of=st.integers(1, 7))
def test_shards_split_the_documents_and_keep_their_numbers(
    tokenizer: Any, tmp_path_factory: pytest.TempPathFactory, count: int, of: int
) -> None:
    source = jsonl(tmp_path_factory.getbasetemp() / "n.jsonl", [f"n{i}" for i in range(count)])
    corpus = read_corpus("d", source, tokenizer=tokenizer, length=9)
    seen = []
    for index in range(of):
        part = corpus.take_shard(index, of)
        assert (part.sha256, part.total, part.shard) == (corpus.sha256, count, (index, of))
        assert all(number % of == index for number in part.numbers)
        assert decoded(tokenizer, part) == [f"n{number}" for number in part.numbers]
        seen += part.numbers
    assert sorted(seen) == list(range(count))


def test_the_hash_is_over_token_ids_and_document_borders(tokenizer: Any, tmp_path: Path) -> None:
    def corpus(*texts: str) -> Any:
        source = jsonl(tmp_path / "h.jsonl", list(texts))
        return read_corpus("d", source, tokenizer=tokenizer, length=9)

    digest = hashlib.sha256()
    for text in ("ab", "c"):
        ids = tokenizer(text)["input_ids"]
        digest.update(len(ids).to_bytes(8, "little"))
        digest.update(b"".join(token.to_bytes(4, "little") for token in ids))
    assert corpus("ab", "c").sha256 == digest.hexdigest()
    assert len({corpus(*t).sha256 for t in [("ab", "c"), ("a", "bc"), ("abc",), ("c", "ab")]}) == 4


def test_domain_names(tmp_path: Path) -> None:
    assert parse_domain(" mäth = a=b.jsonl ") == ("mäth", "a=b.jsonl")
    assert named_domains(["a=x.txt", "数学=y.txt"]) == {"a": "x.txt", "数学": "y.txt"}
    assert named_domains({"a": "x.txt"}) == {"a": "x.txt"}
    assert named_domains("a=x.txt") == {"a": "x.txt"}  # type: ignore[arg-type]
    assert list(named_domains(None))[:2] == ["math", "code"]
    for bad in ("a", "=x.txt", "a=", ""):
        with pytest.raises(UsageError, match="is not NAME=SOURCE"):
            parse_domain(bad)
    with pytest.raises(DomainError, match=r"'a' is given twice \(x\.txt and y\.txt\)"):
        named_domains(["a=x.txt", "a=y.txt"])
    for name in ("a/b", "", "  ", "a\nb", "a\0"):
        with pytest.raises(DomainError, match="cannot be called"):
            named_domains({name: "x.txt"})
    with pytest.raises(UsageError, match="no domain to calibrate on"):
        named_domains([])


def test_text_without_a_token_is_refused(tmp_path: Path) -> None:
    from tokenizers import Regex, normalizers

    tokenizer = load_tokenizer(add_tokenizer(tmp_path))
    tokenizer.backend_tokenizer.normalizer = normalizers.Replace(Regex("[a-z]"), "")
    source = jsonl(tmp_path / "w.jsonl", ["abc", "def"])
    with pytest.raises(DomainError, match=r"domain 'd' .* has no token after tokenising"):
        read_corpus("d", source, tokenizer=tokenizer, length=9)
    some = read_corpus(
        "d", jsonl(tmp_path / "w.jsonl", ["abc", "D"]), tokenizer=tokenizer, length=9
    )
    assert (some.total, some.numbers) == (1, (0,))


def test_text_on_which_the_tokenizer_fails_is_named(tmp_path: Path) -> None:
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import PreTrainedTokenizerFast

    words = Tokenizer(models.WordLevel({"known": 0}))  # no unknown token: other words fail
    words.pre_tokenizer = pre_tokenizers.Whitespace()
    tokenizer = PreTrainedTokenizerFast(tokenizer_object=words)
    source = jsonl(tmp_path / "w.jsonl", ["known", "stranger"])
    with pytest.raises(DomainError, match=r"w\.jsonl, line 2: the tokenizer fails on this text"):
        read_corpus("d", source, tokenizer=tokenizer, length=9)


@pytest.mark.parametrize("options", [{"length": 0}, {"length": 4, "samples": 0}])
def test_sizes_must_be_positive(options: dict[str, int], tokenizer: Any, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="must be at least 1"):
        read_corpus("d", jsonl(tmp_path / "a.jsonl", ["a"]), tokenizer=tokenizer, **options)
    corpus = read_corpus("d", jsonl(tmp_path / "a.jsonl", ["a"]), tokenizer=tokenizer, length=1)
    for shard in ((2, 2), (-1, 2), (0, 0)):
        with pytest.raises(UsageError, match="does not exist"):
            corpus.take_shard(*shard)


@pytest.mark.parametrize("damage", ["{", "{}", "[]", '{"version": "1.0", "model": null}', "\x00"])
def test_an_unreadable_tokenizer_is_one_line(damage: str, tmp_path: Path) -> None:
    add_tokenizer(tmp_path)
    (tmp_path / "tokenizer.json").write_text(damage)
    with pytest.raises(CheckpointError, match="the tokenizer cannot be read") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_a_folder_without_tokenizer_is_one_line(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text('{"model_type": "qwen3_moe"}')
    with pytest.raises(CheckpointError, match="tokenizer") as caught:
        load_tokenizer(tmp_path)
    assert "\n" not in str(caught.value)


def test_chats_without_the_template_are_their_texts(tokenizer: Any, tmp_path: Path) -> None:
    parts = [{"type": "text", "text": "b"}, {"type": "image"}, {"type": "text", "text": "c"}]
    rows = [
        {"messages": [{"role": "user", "content": "hé"}, {"role": "assistant", "content": "ok"}]},
        {"messages": [{"role": "system", "content": None}, {"role": "user", "content": parts}]},
    ]
    (tmp_path / "chat.jsonl").write_text("\n".join(map(json.dumps, rows)))
    read: dict[str, Any] = {"tokenizer": tokenizer, "length": 99, "chat_template": False}
    corpus = read_corpus("d", str(tmp_path / "chat.jsonl"), **read)
    assert decoded(tokenizer, corpus) == ["hé\n\nok", "b\n\nc"]
    same = jsonl(tmp_path / "text.jsonl", ["hé\n\nok", "b\n\nc"])
    assert read_corpus("d", same, tokenizer=tokenizer, length=99).sha256 == corpus.sha256
    (tmp_path / "none.jsonl").write_text(json.dumps({"messages": [{"role": "user"}]}))
    with pytest.raises(DomainError, match=r"none\.jsonl, line 1 holds 'messages' without any text"):
        read_corpus("d", str(tmp_path / "none.jsonl"), **read)


def test_duplicates_are_dropped_before_the_draw(tokenizer: Any, tmp_path: Path) -> None:
    texts = [f"{i:03}" for i in range(40)]
    read: dict[str, Any] = {"tokenizer": tokenizer, "length": 9, "samples": 4, "seed": 7}
    once = read_corpus("d", jsonl(tmp_path / "once.jsonl", texts), **read)
    twice = read_corpus(
        "d", jsonl(tmp_path / "twice.jsonl", [t for t in texts for _ in "ab"]), **read
    )
    assert (once.sha256, once.duplicates) == (twice.sha256, 0)
    assert twice.duplicates == 40
    assert twice.take_shard(1, 2).duplicates == 40
