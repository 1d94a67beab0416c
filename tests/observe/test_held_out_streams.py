"""Streams: text held out comes after the documents that calibration drew; prompts may be long."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import datasets
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from tiny import add_tokenizer

from moeprune.errors import DomainError
from moeprune.observe.domains import Corpus, read_corpus
from moeprune.observe.held_out import Calibrated, held_out, own_held_out
from moeprune.observe.prompts import read_prompts
from moeprune.observe.tokenizer import load_tokenizer

SOURCE = "hf:org/name:train:text"
ROWS = [f"document {i:02}" for i in range(12)]


@pytest.fixture
def tokenizer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """A folder ORG/NAME of the current folder is a dataset to the client, before one of the Hub."""
    (tmp_path / "org" / "name").mkdir(parents=True)
    pq.write_table(pa.table({"text": ROWS * 2}), tmp_path / "org" / "name" / "train.parquet")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(datasets.config, "SLEEP_TIME_ON_THREADS_SHUTDOWN", 0.2)
    return load_tokenizer(add_tokenizer(tmp_path))


def texts(corpus: Corpus, tokenizer: Any) -> set[str]:
    return {tokenizer.decode(ids.tolist()) for ids in corpus.documents}


def calibrated(corpus: Corpus, samples: int) -> Calibrated:
    return Calibrated(
        source=corpus.source,
        sha256=corpus.sha256,
        documents=corpus.total,
        samples=samples,
        length=99,
        seed=5,
    )


def test_a_stream_goes_on_where_calibration_stopped(tokenizer: Any) -> None:
    used = read_corpus("d", SOURCE, tokenizer=tokenizer, length=99, samples=5, seed=5)
    how: dict[str, Any] = {"tokenizer": tokenizer, "length": 99, "seed": 0}
    new, unseen = held_out(
        "e", SOURCE, samples=4, calibrated={"d": calibrated(used, 5)}, **how
    )  # under another name too
    assert unseen
    assert len(texts(new, tokenizer)) == 4
    assert not texts(new, tokenizer) & texts(used, tokenizer)
    rest = own_held_out("d", calibrated(used, 5), samples=99, **how)
    assert texts(rest, tokenizer) == set(ROWS) - texts(used, tokenizer)
    strange = calibrated(used.cut(3), 5)
    other, unseen = held_out("d", SOURCE, samples=12, calibrated={"d": strange}, **how)
    assert unseen and texts(other, tokenizer) == set(ROWS)


def test_a_stream_that_was_read_to_its_end_has_nothing_left(tokenizer: Any) -> None:
    used = read_corpus("d", SOURCE, tokenizer=tokenizer, length=99, samples=50, seed=5)
    how: dict[str, Any] = {"tokenizer": tokenizer, "length": 99, "samples": 4, "seed": 0}
    _, unseen = held_out("d", SOURCE, calibrated={"d": calibrated(used, 50)}, **how)
    assert not unseen
    with pytest.raises(DomainError, match=r"drew all 12 documents .*or calibrate with --samples 6"):
        own_held_out("d", calibrated(used, 50), **how)


def test_prompts_of_a_stream_that_are_too_long_are_left_out_and_said(
    tokenizer: Any, tmp_path: Path
) -> None:
    """Nobody can leave a row out of a dataset of the Hub; one out of a file is an error."""
    rows = ["a", "b" * 9, "c" * 10, "d" * 11]
    pq.write_table(pa.table({"prompt": rows}), tmp_path / "org" / "name" / "train.parquet")
    said: list[str] = []
    how = {"tokenizer": tokenizer, "template": {}, "on_warning": said.append}
    found = read_prompts("d", "hf:org/name:train", length=10, room=9, samples=9, **how)
    assert {tokenizer.decode(ids.tolist()) for ids in found.ids} == {"a", "b" * 9}
    assert (found.total, found.numbers) == (2, (0, 1))
    assert len(said) == 1 and "domain 'd': 2 of 4 prompts have over 9 tokens" in said[0]
    pq.write_table(pa.table({"prompt": rows[2:]}), tmp_path / "org" / "name" / "train.parquet")
    with pytest.raises(DomainError, match="2 of 2 prompts have over 9 tokens"):
        read_prompts("d", "hf:org/name:train", length=9, samples=9, **how)
    with pytest.raises(DomainError, match=r"train\.parquet, row 1: the prompt has 10 tokens"):
        read_prompts("d", "org/name/train.parquet", length=9, **how)
    assert len(said) == 1
