"""Files are read twice and held not at all; what is drawn is what reading them whole would draw."""

from __future__ import annotations

import contextlib
import json
import os
import re
import threading
import tracemalloc
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tiny import add_tokenizer

from moeprune.errors import DomainError
from moeprune.observe.domains import read_corpus
from moeprune.observe.prompts import read_prompts
from moeprune.observe.sources import read_source
from moeprune.observe.textfiles import parts_of
from moeprune.observe.tokenizer import load_tokenizer


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    return load_tokenizer(add_tokenizer(tmp_path_factory.mktemp("tokenizer")))


TEXTS = st.one_of(
    st.sampled_from(["", " ", "\n", "a", "b", "a ", "ä\u2028", "漢字" * 9]), st.text(max_size=9)
)
ROWS = st.one_of(
    TEXTS.map(lambda text: {"text": text}),
    TEXTS.map(lambda text: {"prompt": text, "completion": "!"}),
    TEXTS.map(lambda text: {"messages": [{"role": "user", "content": text}], "text": None}),
)
ENDS = st.sampled_from(["\n", "\r\n", "\r", "\n\n", "\r\n \r\n"])
BOM = st.sampled_from([b"", b"\xef\xbb\xbf"])


def distinct(kinds: list[str], texts: list[Any]) -> tuple[list[int], int]:
    """Places of the documents that count, and how many equal an earlier one: the slow way."""
    seen: list[Any] = []
    places: list[int] = []
    dropped = 0
    for place, (kind, text) in enumerate(zip(kinds, texts, strict=True)):
        if not (text.strip() if isinstance(text, str) else text):
            continue
        if (kind, text) in seen:
            dropped += 1
            continue
        seen.append((kind, text))
        places.append(place)
    return places, dropped


def draw(places: list[int], samples: int | None, seed: int, skip: int) -> list[int]:
    if skip == 0 and (samples is None or samples >= len(places)):
        return places
    order = list(np.random.RandomState(seed).permutation(len(places)))
    order = order[skip:] if samples is None else order[skip : skip + samples]
    return [place for rank, place in enumerate(places) if rank in order]


DRAWS = st.tuples(st.none() | st.integers(1, 9), st.integers(0, 9), st.integers(0, 3))


def check(
    source: str, found: tuple[list[int], int], texts: list[Any], how: Any, tokenizer: Any
) -> None:
    """A corpus holds the tokens of those texts, or says that there are none."""
    samples, seed, skip = how
    places, dropped = found
    wanted = [
        tokenizer(text)["input_ids"][:5]
        if isinstance(text, str)
        else tokenizer.apply_chat_template(text, tokenize=True, return_dict=False)[:5]
        for text in (texts[place] for place in draw(places, samples, seed, skip))
    ]
    draw_of = {"samples": samples, "seed": seed, "skip": skip}
    if not wanted:
        with pytest.raises(DomainError, match=r"holds no document|has no token"):
            read_corpus("d", source, tokenizer=tokenizer, length=5, **draw_of)
        return
    corpus = read_corpus("d", source, tokenizer=tokenizer, length=5, **draw_of)
    assert [ids.tolist() for ids in corpus.documents] == wanted
    assert corpus.duplicates == dropped


@given(st.lists(st.tuples(ROWS, ENDS), max_size=12), BOM, st.booleans(), DRAWS)
def test_jsonl_is_drawn_as_if_it_were_held(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Any,
    rows: list[tuple[dict[str, Any], str]],
    bom: bytes,
    ascii: bool,
    how: Any,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    body = "".join(json.dumps(row, ensure_ascii=ascii) + end for row, end in rows)
    path.write_bytes(bom + body.encode())
    numbers = [
        number
        for number, line in enumerate(re.split("\r\n|\r|\n", body), start=1)
        if line.strip(" ")
    ]
    texts: list[Any] = []
    for row, _ in rows:
        if "messages" in row:
            texts.append(row["messages"])
        else:
            texts.append(row["text"] if "text" in row else row["prompt"] + row["completion"])
    kinds = ["chat" if isinstance(text, list) else "text" for text in texts]
    check(str(path), distinct(kinds, texts), texts, how, tokenizer)

    asked = [row.get("prompt", text) for (row, _), text in zip(rows, texts, strict=True)]
    whole = ["prompt" in row for row, _ in rows]
    kinds = ["prompt" if is_whole else kind for is_whole, kind in zip(whole, kinds, strict=True)]
    places, dropped = distinct(kinds, asked)
    if not places:
        return
    read = read_source(str(path), prompts=True)
    chosen = draw(list(range(len(places))), *how)
    wanted = [
        (
            tuple(asked[place]) if kinds[place] == "chat" else asked[place],
            f"{path}, line {numbers[place]}",
            kinds[place] != "text",
        )
        for place in (places[rank] for rank in chosen)
    ]
    assert [(d.text, d.where, d.whole) for d in read.take(chosen)] == wanted
    assert (read.total, read.duplicates) == (len(places), dropped)
    assert len(read_prompts_of(path, tokenizer).documents) == len(places)


def read_prompts_of(path: Path, tokenizer: Any) -> Any:
    told = {"add_generation_prompt": True}
    return read_prompts("d", str(path), tokenizer=tokenizer, template=told, length=999)


@given(st.lists(TEXTS, min_size=2, max_size=12), BOM, st.sampled_from(["", "\r\n", "\r"]), DRAWS)
def test_text_files_are_drawn_as_if_they_were_held(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Any,
    parts: list[str],
    bom: bytes,
    end: str,
    how: Any,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.txt"
    path.write_bytes(bom + "\f".join(part + end for part in parts).encode())
    texts = path.read_text(encoding="utf-8-sig").split("\f")
    check(str(path), distinct(["text"] * len(texts), texts), texts, how, tokenizer)


@given(st.lists(st.none() | TEXTS, max_size=12), st.integers(1, 5), DRAWS)
def test_parquet_is_drawn_as_if_it_were_held(
    tmp_path_factory: pytest.TempPathFactory,
    tokenizer: Any,
    rows: list[str | None],
    group: int,
    how: Any,
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.parquet"
    table = pa.table({"text": pa.array(rows, pa.string()), "other": list(range(len(rows)))})
    pq.write_table(table, path, row_group_size=group)
    texts = [row or "" for row in rows]
    places, dropped = distinct(["text"] * len(texts), texts)
    check(str(path), (places, dropped), texts, how, tokenizer)
    if places:
        chosen = draw(list(range(len(places))), *how)
        wanted = [f"{path}, row {places[rank] + 1}" for rank in chosen]
        assert [document.where for document in read_source(str(path)).take(chosen)] == wanted


@given(
    st.lists(st.sampled_from(["a", "\f", "\r", "\n", "ü", "漢", "\xff", "\xc3"]), max_size=20),
    BOM,
    st.integers(4, 8),
)
def test_a_text_file_is_read_in_chunks_as_it_is_whole(
    tmp_path_factory: pytest.TempPathFactory, signs: list[str], bom: bytes, chunk: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "chunks.txt"
    single = {"\xff": b"\xff", "\xc3": b"\xc3"}  # no letter of UTF-8, or half of one
    path.write_bytes(bom + b"".join(single.get(sign) or sign.encode() for sign in signs))
    try:
        wanted = path.read_text(encoding="utf-8-sig").split("\f")
    except UnicodeDecodeError as problem:
        with pytest.raises(DomainError, match=rf"not UTF-8 text \(byte {problem.start}\)"):
            list(parts_of(path, chunk=chunk))
    else:
        assert list(parts_of(path, chunk=chunk)) == wanted


def write_jsonl(path: Path, texts: list[Any]) -> None:
    path.write_text("\n".join(json.dumps({"text": text}) for text in texts))


def write_text(path: Path, texts: list[Any]) -> None:
    path.write_text("\f".join(texts))


def write_parquet(path: Path, texts: list[Any]) -> None:
    pq.write_table(pa.table({"text": texts}), path, row_group_size=2)


Write = Callable[[Path, list[Any]], None]
WRITERS = {"d.jsonl": write_jsonl, "d.txt": write_text, "d.parquet": write_parquet}


@pytest.mark.parametrize(("name", "write"), WRITERS.items(), ids=WRITERS)
def test_a_file_that_changes_between_is_refused(name: str, write: Write, tmp_path: Path) -> None:
    path = tmp_path / name
    write(path, ["one", "two", "three", "four", "five"])
    read = read_source(str(path))
    changes: dict[str, list[Any]] = {
        rf"{name} has changed while it was read \(\w+ 4 is another one\)": [*"12", "three", *"45"],
        rf"{name} has changed while it was read \(holds fewer": ["one", "two", "three"],
    }
    for message, texts in changes.items():
        write(path, texts)
        with pytest.raises(DomainError, match=message) as caught:
            list(read.take([2, 3]))
        assert "\n" not in str(caught.value)
    path.write_bytes(b'{"text": "one"}\n{\n{\n{\n\xff')
    with pytest.raises(DomainError, match=rf"{name} (is no longer what it was|has changed)"):
        list(read.take([2, 3]))
    path.unlink()
    with pytest.raises(DomainError, match=rf"{name} is no longer what it was .*{name}"):
        list(read.take([2, 3]))
    # What was not drawn may change.
    write(path, ["other", "two", "three", "four", "five", "six"])
    assert [document.text for document in read.take([1, 3])] == ["two", "four"]


def test_a_bad_row_is_named_though_it_is_not_drawn(tmp_path: Path, tokenizer: Any) -> None:
    path = tmp_path / "d.jsonl"
    path.write_text('{"text": "a"}\n' * 300 + '{"text": 3}\n')
    with pytest.raises(DomainError, match=r"line 301: 'text' is a int"):
        read_corpus("d", str(path), tokenizer=tokenizer, length=5, samples=1)
    chats = [[{"role": role, "content": "a"}] for role in ["user"] * 300 + [None]]
    pq.write_table(pa.table({"messages": chats}), tmp_path / "d.parquet", row_group_size=7)
    with pytest.raises(DomainError, match=r"row 301: 'messages' must be a list"):
        read_corpus("d", str(tmp_path / "d.parquet"), tokenizer=tokenizer, length=5, samples=1)


@pytest.mark.parametrize("name", ["d.jsonl", "d.txt"])
@pytest.mark.parametrize("samples", [3, None])
def test_texts_are_not_held(name: str, samples: int | None, tmp_path: Path, tokenizer: Any) -> None:
    path, size = tmp_path / name, 200_000
    WRITERS[name](path, [f"{number:09}" + "word " * (size // 5) for number in range(60)])
    how = {"tokenizer": tokenizer, "length": 9, "samples": samples}
    read_corpus("d", str(path), **how)  # what is imported and kept by a first use
    tracemalloc.start()
    try:
        read_corpus("d", str(path), **how)
        _, most = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert most < 30 * size, "12 MB of text were held"


@pytest.mark.parametrize("name", ["d.jsonl", "d.txt"])
def test_a_pipe_is_read_once(name: str, tmp_path: Path) -> None:
    pipe, texts = tmp_path / name, ["a", "b", "a", " ", "c"]
    os.mkfifo(pipe)
    writer = threading.Thread(target=WRITERS[name], args=(pipe, texts), daemon=True)
    writer.start()
    read = read_source(str(pipe))
    writer.join(10)
    assert [document.text for document in read.take([0, 2])] == ["a", "c"]
    assert (read.total, read.duplicates) == (3, 1)
    with contextlib.closing(read.take([0])) as once:  # type: ignore[type-var]
        assert next(once).text == "a"
