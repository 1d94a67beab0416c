"""Chats of rows and tables: what stands in a message reaches the template as text and numbers."""

from __future__ import annotations

import datetime
import decimal
import json
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from moeprune.errors import DomainError
from moeprune.observe.messages import messages_of
from moeprune.observe.sources import read_source


def of_table(path: Path, chats: list[Any], **how: bool) -> list[Any]:
    pq.write_table(pa.table({"messages": chats}), path / "t.parquet")
    return [d.text for d in read_source(str(path / "t.parquet"), **how).documents]


def of_lines(path: Path, *rows: Any, **how: bool) -> list[Any]:
    (path / "d.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return [d.text for d in read_source(str(path / "d.jsonl"), **how).documents]


@pytest.mark.parametrize("prompts", [False, True])
def test_what_logs_of_chats_hold_beside_the_text_is_json(prompts: bool, tmp_path: Path) -> None:
    when = datetime.datetime(2024, 1, 2, 3, 4)
    message = {"role": "user", "content": "hi", "at": when, "cost": decimal.Decimal("0.5")}
    plain = {"role": "user", "content": "hi", "at": "2024-01-02 03:04:00", "cost": "0.5"}
    (read,) = of_table(tmp_path, [[{**message, "score": float("nan")}]], prompts=prompts)
    assert read == (plain,)
    assert json.loads(json.dumps(read, allow_nan=False)) == [plain]


def test_a_row_that_spells_nan_can_be_written_again(tmp_path: Path) -> None:
    message = {"role": "user", "content": "hi", "scores": [float("inf"), 0.5]}
    (read,) = of_lines(tmp_path, {"messages": [{**message, "score": float("nan")}]})
    assert read == ({"role": "user", "content": "hi", "scores": [None, 0.5], "score": None},)


def test_keys_that_only_other_rows_have_are_left_out_at_every_depth(tmp_path: Path) -> None:
    def called(**arguments: Any) -> list[Any]:
        calls = [{"function": {"name": "f", "arguments": arguments}}]
        return [
            {"role": "user", "content": "q"},
            {"role": "assistant", "tool_calls": calls},
            {"role": "tool", "content": "3"},
        ]

    chats = [called(a=1), called(b="z")]
    assert of_table(tmp_path, chats) == [tuple(chat) for chat in chats]
    plain = [[{"role": "user", "content": None}, {"role": "user", "content": "a"}]]
    assert of_table(tmp_path, plain) == [({"role": "user"}, {"role": "user", "content": "a"})]
    # A row of JSONL has only the keys that were written into it.
    assert of_lines(tmp_path, {"messages": plain[0]}) == [tuple(plain[0])]


@pytest.mark.parametrize(
    ("chat", "words"),
    [
        ([{"role": "user", "content": b"a"}], "'messages' holds a bytes; only texts and numbers"),
        ([{"role": None, "content": "a"}], "must be a list of objects with a 'role'"),
        ([{"role": 3, "content": "a"}], "must be a list of objects with a 'role'"),
    ],
)
def test_chats_that_do_not_serve_are_named(chat: Any, words: str, tmp_path: Path) -> None:
    with pytest.raises(DomainError, match=rf"t\.parquet, row 1: .*{words}"):
        of_table(tmp_path, [chat])


def test_a_chat_that_is_nested_too_deep_is_one_line() -> None:
    deep: Any = "a"
    for _ in range(5000):
        deep = [deep]
    with pytest.raises(DomainError, match="line 1: 'messages' is nested too deep"):
        messages_of([{"role": "user", "content": deep}], "line 1: 'messages'")


def test_null_is_as_good_as_no_key(tmp_path: Path) -> None:
    """As pandas and datasets write rows that have not all the same keys."""
    row = {"text": None, "messages": None, "prompt": "a", "completion": "b"}
    assert of_lines(tmp_path, row) == ["ab"]
    assert of_lines(tmp_path, row, prompts=True) == ["a"]


def test_a_prompt_and_its_completion_may_be_messages(tmp_path: Path) -> None:
    asked, told = {"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}
    row = {"prompt": [asked], "completion": [told]}
    assert of_lines(tmp_path, row) == [(asked, told)]
    assert of_lines(tmp_path, row, prompts=True) == [(asked,)]


def test_a_text_and_a_prompt_are_two_documents(tmp_path: Path) -> None:
    """Of a text the beginning is asked, a prompt is asked whole."""
    rows = [{"text": "a b"}, {"prompt": "a b"}, {"text": "a b"}]
    assert of_lines(tmp_path, *rows, prompts=True) == ["a b", "a b"]
