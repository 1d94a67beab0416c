"""From rows with answers to the targets of batches, whatever holds the rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import add_tokenizer

from moeprune.errors import DomainError
from moeprune.observe.batches import batches
from moeprune.observe.domains import Corpus, read_corpus
from moeprune.observe.held_out import Calibrated, held_out
from moeprune.observe.rounds import rounds
from moeprune.observe.tokenizer import load_tokenizer
from moeprune.stages.texts import read_texts

QUESTION, ANSWER = {"role": "user", "content": "2?"}, {"role": "assistant", "content": "two"}
ROWS: list[dict[str, Any]] = [
    {"prompt": "1+1=", "completion": "2"},
    {"text": "plain"},
    {"messages": [QUESTION, ANSWER, QUESTION, ANSWER]},
    {"prompt": [QUESTION, ANSWER, QUESTION], "completion": [{**ANSWER, "content": "zwei"}]},
    {"prompt": "ü?", "completion": " é"},
]
# One token a byte; the template writes the role of an answer without asking for one.
DUE = ["2", "lain", "two<|im_end|>two<|im_end|>", "zwei<|im_end|>", " é"]


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(add_tokenizer(tmp_path_factory.mktemp("tokenizer")))


def jsonl(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("\n".join(map(json.dumps, rows)))
    return str(path)


def answers(tokenizer: Any, corpus: Corpus) -> list[str]:
    """The targets of each document, in the order of its number, as batches hold them."""
    found: dict[int, str] = {}
    for side in ("left", "right"):
        for batch in batches(corpus, max_tokens=100, padding_side=side):
            assert not batch.target_BS[batch.mask_BS == 0].any()
            for line, number in enumerate(batch.number_B.tolist()):
                text = tokenizer.decode(batch.ids_BS[line][batch.target_BS[line]])
                assert found.setdefault(number, text) == text
    return [found[number] for number in sorted(found)]


def read(source: str, tokenizer: Any, **how: Any) -> Corpus:
    return read_corpus("d", source, **{"tokenizer": tokenizer, "length": 500, **how})


def test_every_kind_of_row(tokenizer: Any, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", ROWS)
    corpus = read(source, tokenizer, answers=True)
    assert answers(tokenizer, corpus) == DUE
    assert corpus.num_targets == sum(
        len(tokenizer(text, add_special_tokens=False)["input_ids"]) for text in DUE
    )
    plain = read(source, tokenizer)
    for one, other in zip(plain.documents, corpus.documents, strict=True):
        np.testing.assert_array_equal(one, other)
    whole = tokenizer.decode(plain.documents[0][1:])
    assert answers(tokenizer, plain)[0] == whole == "+1=2"
    assert plain.num_targets == plain.num_tokens - 5


def test_a_table_gives_what_its_rows_give(tokenizer: Any, tmp_path: Path) -> None:
    rows = [ROWS[0], ROWS[4]]
    table = tmp_path / "t.parquet"
    pq.write_table(pa.Table.from_pylist(rows), table)
    assert answers(tokenizer, read(str(table), tokenizer, answers=True)) == ["2", " é"]
    pq.write_table(pa.Table.from_pylist([ROWS[2]]), table)
    assert answers(tokenizer, read(f"{table}:messages", tokenizer, answers=True)) == [DUE[2]]
    pq.write_table(pa.Table.from_pylist(rows), table)
    named = read(f"{table}:prompt+completion", tokenizer, answers=True)
    assert answers(tokenizer, named) == ["2", " é"]
    other = read(f"{table}:completion+prompt", tokenizer, answers=True)
    assert other.targets == ()


def test_a_dataset_of_the_hub_as_well(
    tokenizer: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "org" / "name").mkdir(parents=True)  # which the client takes before one of the Hub
    table = pa.Table.from_pylist([{"prompt": f"{n}=", "completion": f"{n}!"} for n in range(9)])
    pq.write_table(table, tmp_path / "org" / "name" / "train.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0.2)
    corpus = read("hf:org/name:train", tokenizer, answers=True, samples=20)
    assert sorted(answers(tokenizer, corpus)) == [f"{n}!" for n in range(9)]


def test_of_equal_texts_the_first_says_where_the_answer_begins(
    tokenizer: Any, tmp_path: Path
) -> None:
    rows = [
        {"prompt": "abc", "completion": "def"},
        {"prompt": "xy", "completion": "z"},
        {"prompt": "abcd", "completion": "ef"},
        {"prompt": "", "completion": "abcdef"},
    ]
    for order, due in ((rows, ["def", "z"]), (rows[::-1], ["bcdef", "z"])):
        source = jsonl(tmp_path / "a.jsonl", order)
        corpus = read(source, tokenizer, answers=True)
        assert (answers(tokenizer, corpus), corpus.duplicates) == (due, 2)
        plain = read(source, tokenizer)
        assert [ids.tolist() for ids in plain.documents] == [
            ids.tolist() for ids in corpus.documents
        ]


def test_the_hash_tells_other_answers_and_nothing_where_all_tokens_are(
    tokenizer: Any, tmp_path: Path
) -> None:
    texts = jsonl(tmp_path / "t.jsonl", [{"text": "abcdef"}, {"text": "x"}])
    assert read(texts, tokenizer, answers=True).sha256 == read(texts, tokenizer).sha256
    found = {
        read(
            jsonl(tmp_path / "a.jsonl", [{"prompt": "abcdef"[:at], "completion": "abcdef"[at:]}]),
            tokenizer,
            answers=True,
        ).sha256
        for at in (2, 3, 4)
    }
    plain = read(str(tmp_path / "a.jsonl"), tokenizer).sha256
    assert len(found | {plain}) == 4


def test_targets_go_with_their_documents(tokenizer: Any, tmp_path: Path) -> None:
    rows = [{"prompt": "p" * n, "completion": f"{n}!" * 9} for n in range(1, 40)]
    source = jsonl(tmp_path / "a.jsonl", rows)
    whole = read(source, tokenizer, answers=True)
    due = dict(enumerate(answers(tokenizer, whole)))
    assert due == {row: f"{row + 1}!" * 9 for row in range(39)}
    parts = [whole.take_shard(index, 3) for index in range(3)]
    parts += [part for (part,) in rounds([whole], seed=1)]
    for part in parts:
        assert answers(tokenizer, part) == [due[number] for number in sorted(part.numbers)]
        assert part.num_targets == sum(len(due[number]) for number in part.numbers)
    for cut in (whole.cut(12), read(source, tokenizer, answers=True, length=12)):
        assert answers(tokenizer, cut) == [(f"{n}!" * 9)[: max(0, 12 - n)] for n in range(1, 40)]
        assert cut.sha256 == whole.cut(12).sha256
    drawn = read(source, tokenizer, answers=True, samples=5, seed=3)
    plain = read(source, tokenizer, samples=5, seed=3)
    for ids, other, targets in zip(drawn.documents, plain.documents, drawn.targets, strict=True):
        np.testing.assert_array_equal(ids, other)
        assert targets.size == ids.size


def test_no_answer_within_the_length_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    source = jsonl(tmp_path / "a.jsonl", [{"prompt": "p" * 20, "completion": "yes"}])
    how: dict[str, Any] = {
        "config": {},
        "shard": (0, 1),
        "on_warning": None,
        "tokenizer": tokenizer,
    }
    for loss in (None, "all"):
        ((corpus,), _) = read_texts({"d": source}, length=10, loss=loss, **how)
        assert corpus.num_targets == 9
    with pytest.raises(DomainError, match=r"^domain 'd' .* no answer within 10 .*--loss all\.$"):
        read_texts({"d": source}, length=10, loss="completion", **how)
    short = jsonl(tmp_path / "b.jsonl", [{"text": "p"}])
    with pytest.raises(DomainError, match="no document of two tokens"):
        read_texts({"d": short}, length=10, loss="all", **how)


def test_what_calibration_read_is_known_again(tokenizer: Any, tmp_path: Path) -> None:
    rows = [{"prompt": f"{n}?", "completion": str(n)} for n in range(20)]
    source = jsonl(tmp_path / "a.jsonl", rows)
    used = read(source, tokenizer, answers=True, samples=8, seed=2, length=64)
    how: dict[str, Any] = {"tokenizer": tokenizer, "length": 64, "samples": 99, "seed": 0}
    told = {"source": "a.jsonl", "sha256": used.sha256, "documents": 8, "samples": 8}
    known = Calibrated(**told, length=64, seed=2, answers=True)  # type: ignore[arg-type]
    rest, unseen = held_out("d", source, calibrated={"d": known}, **how)
    seen = {ids.tobytes() for ids in used.documents}
    assert unseen and rest.total == 12
    assert not seen & {ids.tobytes() for ids in rest.documents}
