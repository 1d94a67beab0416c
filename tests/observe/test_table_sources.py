"""Tables as sources: parquet files, and datasets of a Hub read by the real client."""

from __future__ import annotations

import io
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from datasethub import serve_datasets

from moeprune.errors import DomainError, MoePruneError, UsageError
from moeprune.observe.rows import Document
from moeprune.observe.sources import read_source, source_path

CHATS = [
    [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes", "think": "hm"}],
    [{"role": "user", "content": "ü"}],
]


def write(path: Path, **columns: list[Any]) -> str:
    pq.write_table(pa.table(columns), path)
    return str(path)


def texts(source: str, **how: Any) -> list[Any]:
    return [document.text for document in read_source(source, **how).documents]


@pytest.mark.parametrize(
    "columns",
    [
        {"id": [1, 2, 3], "text": ["a", "ü\n漢", "a"]},
        {"messages": CHATS, "prompt": ["x", "y"]},
        {"prompt": ["1+1=", "2+2="], "completion": ["2", "4"]},
        {"text": [f"row {i}" for i in range(3000)]},
    ],
    ids=["text", "messages", "prompt and completion", "many"],
)
def test_a_table_is_read_as_the_same_rows_of_jsonl(columns: dict[str, Any], tmp_path: Path) -> None:
    lines = [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, lines)))
    table = read_source(write(tmp_path / "t.parquet", **columns))
    same = read_source(str(tmp_path / "t.jsonl"))
    assert [d.text for d in table.documents] == [d.text for d in same.documents]
    assert (table.name, table.duplicates) == ("t.parquet", same.duplicates)
    assert table.documents[0].where.endswith("t.parquet, row 1")


def test_columns_are_named_after_the_file(tmp_path: Path) -> None:
    path = write(
        tmp_path / "t.parquet",
        question=["1+1?", "2+2?", None, "a?"],
        answer=["two", "four", "what", None],
        chat=[*CHATS, None, []],
        **{"a+b": ["x", "y", "z", "x"]},
    )
    assert texts(f"{path}:a+b") == ["x", "y", "z"]
    assert texts(f"{path}:question") == ["1+1?", "2+2?", "a?"]
    assert texts(f"{path}:question+answer") == ["1+1?\n\ntwo", "2+2?\n\nfour", "what", "a?"]
    assert texts(f"{path}:chat") == [tuple(chat) for chat in CHATS]
    assert read_source(f"{path}:question").name == "t.parquet:question"
    assert source_path(f"{path}:question") == source_path(path) == Path(path)


def test_missing_values_are_no_documents(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", text=[None, "a", None, "b", ""])
    assert texts(path) == ["a", "b"]
    path = write(tmp_path / "p.parquet", prompt=["a", None], completion=["b", "c"])
    assert texts(path) == ["ab"]
    with pytest.raises(DomainError, match=r"n\.parquet holds no document"):
        read_source(write(tmp_path / "n.parquet", text=[None, None]))


def test_tables_that_do_not_serve_are_named(tmp_path: Path) -> None:
    path = write(tmp_path / "t.parquet", prompt=["a"], number=[3])
    folder = tmp_path / "folder.parquet"
    folder.mkdir()
    (tmp_path / "bad.parquet").write_bytes(b"PAR1 but no more")
    cases = {
        path: r"has no column 'text' or 'messages'; it has prompt, number\. Name one of them",
        f"{path}:prompt+text": r"has no column 'text'; it has prompt, number",
        f"{path}:number": r"row 1: 'number' is a int; it must be a string",
        f"{tmp_path}/none.parquet": r"none\.parquet is no file",
        f"{tmp_path}/bad.parquet": r"bad\.parquet cannot be read as parquet",
        str(tmp_path): r"is not a source of text",
        f"{folder}": r"folder\.parquet is no file",
    }
    for source, message in cases.items():
        with pytest.raises(MoePruneError, match=message) as caught:
            read_source(source)
        assert "\n" not in str(caught.value)


@pytest.mark.parametrize("library", ["pyarrow", "datasets"])
def test_a_missing_library_is_named_with_the_extra(
    library: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    source = write(tmp_path / "t.parquet", text=["a"])
    if library == "datasets":
        source = "hf:org/name:train:text"
    for name in (library, f"{library}.parquet"):
        monkeypatch.setitem(sys.modules, name, None)
    with pytest.raises(UsageError, match=rf'{library}.*pip install "moeprune\[data\]"'):
        read_source(source, samples=1)


READ = """
import json, sys
import datasets
datasets.config.SLEEP_TIME_ON_THREADS_SHUTDOWN = 0.5  # it would sleep 5 s after each stream
from moeprune.errors import MoePruneError
from moeprune.observe.sources import read_source
for source, how in json.loads(sys.argv[1]):
    try:
        read = read_source(source, **how)
        print(json.dumps([[d.text for d in read.documents], read.duplicates, read.name]))
    except MoePruneError as problem:
        print(json.dumps([type(problem).__name__, str(problem)]))
"""

# 20 different texts, each twice.
ROWS = [f"document {i // 2}" for i in range(40)]


@pytest.fixture(scope="module")
def streamed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the real client reads of a Hub on this machine, in one process: importing takes long."""
    text, chat = io.BytesIO(), io.BytesIO()
    card = (
        "---\nconfigs:\n- config_name: default\n  data_files: data/train-*\n"
        "- config_name: chats\n  data_files:\n  - split: validation\n    path: chats/*\n---\n"
    )
    # A picture that no library here can decode, and none has to.
    picture = {"bytes": b"no picture", "path": None}
    table = pa.table({"text": ROWS, "other": ["same"] * 40, "picture": [picture] * 40})
    features = {"picture": {"_type": "Image"}, "text": {"dtype": "string", "_type": "Value"}}
    features["other"] = features["text"]
    kind = json.dumps({"info": {"features": features}})
    pq.write_table(table.replace_schema_metadata({"huggingface": kind}), text)
    pq.write_table(pa.table({"talk": CHATS}), chat)
    column = "hf:org/name:train:text"
    asked = {
        "first": (column, {"samples": 6, "seed": 3}),
        "again": (column, {"samples": 6, "seed": 3}),
        "other seed": (column, {"samples": 6, "seed": 4}),
        "rest": (column, {"samples": 99, "seed": 3, "skip": 6}),
        "past the end": (column, {"samples": 1, "seed": 3, "skip": 20}),
        "no column named": ("hf:org/name:train", {"samples": 99, "seed": 0}),
        "chat": ("hf:org/name/chats:validation:talk", {"samples": 2}),
        "split": ("hf:org/name:test:text", {"samples": 1}),
        "column": ("hf:org/name:train:words", {"samples": 1}),
        "configuration": ("hf:org/name/large:train:text", {"samples": 1}),
        "script": ("hf:org/scripted:train:text", {"samples": 1}),
        "dataset": ("hf:org/none:train:text", {"samples": 1}),
    }
    with serve_datasets() as hub:
        hub.files["data/train-00000-of-00001.parquet"] = text.getvalue()
        hub.files["chats/part.parquet"] = chat.getvalue()
        hub.files["README.md"] = card.encode()
        hub.files["scripted.py"] = b"raise SystemExit('code of the repository was run')\n"
        home = tmp_path_factory.mktemp("home")
        online = {"HF_HUB_OFFLINE": "0", "HF_DATASETS_OFFLINE": "0"}
        done = subprocess.run(
            [sys.executable, "-c", READ, json.dumps(list(asked.values()))],
            env={**os.environ, "HF_ENDPOINT": hub.url, "HF_HOME": str(home), **online},
            cwd=home,
            capture_output=True,
            text=True,
            timeout=240,
        )
    assert done.returncode == 0, done.stderr
    answers = map(json.loads, done.stdout.splitlines())
    return dict(zip(asked, answers, strict=True))


def test_a_stream_is_a_seeded_draw_without_duplicates(streamed: dict[str, Any]) -> None:
    first, duplicates, name = streamed["first"]
    assert len(set(first)) == len(first) == 6 and set(first) <= set(ROWS)
    assert 0 <= duplicates <= 6
    assert name == "hf:org/name:train:text"
    assert streamed["again"] == streamed["first"]
    assert streamed["other seed"][0] != first


def test_what_a_stream_has_left_is_all_the_rest(streamed: dict[str, Any]) -> None:
    rest, duplicates, _ = streamed["rest"]
    assert sorted(rest + streamed["first"][0]) == sorted(set(ROWS))
    assert duplicates == 20
    error, said = streamed["past the end"]
    assert error == "DomainError" and "no document after the first 20" in said


def test_streams_know_the_columns_that_files_do(streamed: dict[str, Any]) -> None:
    assert sorted(streamed["no column named"][0]) == sorted(set(ROWS))
    assert sorted(map(str, streamed["chat"][0])) == sorted(map(str, CHATS))


@pytest.mark.parametrize(
    ("case", "words"),
    [
        ("split", "cannot be read from the Hub (Bad split: test"),
        ("column", "has no column 'words'; it has text, other"),
        ("configuration", "cannot be read from the Hub (BuilderConfig 'large' not found"),
        ("script", "cannot be read from the Hub (Dataset scripts are no longer supported"),
        ("dataset", "Check its name, configuration and split, and the network."),
    ],
)
def test_mistakes_in_a_stream_are_one_line(case: str, words: str, streamed: Any) -> None:
    error, said = streamed[case]
    assert error == "DomainError"
    assert words in said and "\n" not in said


def test_documents_know_whether_they_hold_anything() -> None:
    assert Document(text=" \n", where="").blank and Document(text=(), where="").blank
    assert not Document(text="a", where="").blank
