"""Prompts: of chats up to the answer, of rows as they stand, of texts the beginning."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from tiny import add_tokenizer

from moeprune.errors import DomainError, MoePruneError, UsageError
from moeprune.observe.prompts import Prompts, read_prompts
from moeprune.observe.tokenizer import load_tokenizer, template_switch

TEMPLATE = (
    "{% for m in messages %}<{{ m['role'] }}>{{ m['content'] }}{% endfor %}"
    "{% if add_generation_prompt %}<assistant>"
    "{% if enable_thinking is defined and enable_thinking is false %}<no>{% endif %}{% endif %}"
)


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    made = load_tokenizer(add_tokenizer(tmp_path_factory.mktemp("tokenizer")))
    made.chat_template = TEMPLATE
    return made


def read(tokenizer: Any, path: Path, *rows: Any, thinking: str = "default", **options: Any) -> Any:
    path = path / "d.jsonl"
    path.write_text("\n".join(map(json.dumps, rows)))
    how: dict[str, Any] = {"length": 100, **options}
    return read_prompts(
        "d",
        str(path),
        tokenizer=tokenizer,
        template=template_switch(tokenizer, thinking),
        **how,
    )


def texts(tokenizer: Any, prompts: Prompts) -> list[str]:
    return [tokenizer.decode(ids.tolist()) for ids in prompts.ids]


def test_each_kind_of_row(tokenizer: Any, tmp_path: Path) -> None:
    user = {"role": "user", "content": "hi"}
    told = {"role": "assistant", "content": "yes"}
    found = read(
        tokenizer,
        tmp_path,
        {"messages": [user, told, user, told]},
        {"prompt": [user], "completion": [told]},
        {"prompt": "What is it?", "completion": "unread"},
        {"text": "eleven char"},
        {"text": "x"},
    )
    assert texts(tokenizer, found) == [
        "<user>hi<assistant>yes<user>hi<assistant>",
        "<user>hi<assistant>",
        "What is it?",
        "eleve",
        "x",
    ]
    assert found.numbers == (0, 1, 2, 3, 4) and found.total == 5 and found.has_chats


def test_the_beginning_of_a_text_is_as_long_as_asked(tokenizer: Any, tmp_path: Path) -> None:
    rows = [{"text": "0123456789" * 3}, {"text": "abc"}, {"prompt": "as it stands, whole"}]
    for options, want in (
        ({"prompt_length": 4}, ["0123", "abc", rows[2]["prompt"]]),
        ({"length": 20}, ["0123456789", "a", rows[2]["prompt"]]),
        # The room that an answer leaves cuts a text's first half, and not what it is a half of.
        ({"room": 20}, ["0123456789" + "01234", "a", rows[2]["prompt"]]),
        ({"room": 20, "prompt_length": 20}, ["0123456789" * 2, "abc", rows[2]["prompt"]]),
    ):
        assert texts(tokenizer, read(tokenizer, tmp_path, *rows, **options)) == want
    path = tmp_path / "running.txt"
    path.write_text("0123456789abcdefghij")
    found = read_prompts(
        "d", str(path), tokenizer=tokenizer, template={}, length=8, samples=None, seed=0
    )
    assert texts(tokenizer, found) == ["0123", "89ab", "gh"]


def test_a_prompt_length_beyond_the_room_is_refused(tokenizer: Any, tmp_path: Path) -> None:
    for options in ({"length": 9}, {"room": 9}):
        with pytest.raises(UsageError, match="--prompt-length 10: a prompt may have 9 tokens"):
            read(tokenizer, tmp_path, {"text": "a"}, prompt_length=10, **options)
    with pytest.raises(DomainError, match="the prompt has 10 tokens, 9 are allowed"):
        read(tokenizer, tmp_path, {"prompt": "0123456789"}, room=9)


@pytest.mark.parametrize(("thinking", "end"), [("default", ""), ("on", ""), ("off", "<no>")])
def test_the_thinking_switch(tokenizer: Any, tmp_path: Path, thinking: str, end: str) -> None:
    row = {"messages": [{"role": "user", "content": "hi"}]}
    found = read(tokenizer, tmp_path, row, thinking=thinking)
    assert texts(tokenizer, found) == ["<user>hi<assistant>" + end]


def test_a_template_without_the_switch_is_told_nothing(tmp_path: Path) -> None:
    plain = load_tokenizer(add_tokenizer(tmp_path / "t"))
    assert template_switch(plain, "default") == {"add_generation_prompt": True}
    with pytest.raises(UsageError, match="has no switch for it"):
        template_switch(plain, "off")
    plain.chat_template = None
    with pytest.raises(UsageError, match="has no switch for it"):
        template_switch(plain, "on")
    plain.chat_template = TEMPLATE.replace("enable_thinking", "thinking")
    assert template_switch(plain, "on")["thinking"] is True
    plain.chat_template = "{{ raise_exception('no') }}"
    with pytest.raises(UsageError, match="refuses a message"):
        template_switch(plain, "on")


def test_shards_and_samples_keep_numbers(tokenizer: Any, tmp_path: Path) -> None:
    rows = [{"prompt": f"prompt {i}"} for i in range(10)]
    whole = read(tokenizer, tmp_path, *rows, samples=7, seed=3)
    parts = [whole.take_shard(index, 3) for index in range(3)]
    assert sorted(n for part in parts for n in part.numbers) == list(range(7))
    for part in parts:
        assert part.sha256 == whole.sha256 and part.total == 7
        for number, ids in zip(part.numbers, part.ids, strict=True):
            assert ids.tolist() == whole.ids[number].tolist()
    with pytest.raises(UsageError, match="shard 3/3"):
        whole.take_shard(3, 3)


@pytest.mark.parametrize(
    ("row", "words"),
    [
        ({"prompt": "x" * 101}, "line 1: the prompt has 101 tokens, 100 are allowed"),
        ({"prompt": 3}, "'prompt' is a int"),
        ({"prompt": []}, "asks nothing"),
        ({"messages": [{"role": "assistant", "content": "a"}]}, "asks nothing"),
        ({"messages": ["hi"]}, "'messages' must be a list of objects"),
        ({"completion": "x"}, "needs 'messages', or 'prompt', or 'text'"),
        ({"prompt": "  "}, "holds no document"),
    ],
)
def test_rows_that_do_not_serve(tokenizer: Any, tmp_path: Path, row: Any, words: str) -> None:
    with pytest.raises(DomainError, match=words) as caught:
        read(tokenizer, tmp_path, row)
    assert isinstance(caught.value, MoePruneError) and "\n" not in str(caught.value)


def test_tables_ask_what_rows_ask(tokenizer: Any, tmp_path: Path) -> None:
    import pyarrow
    import pyarrow.parquet

    chat = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "yes"}]
    columns = {
        "prompt": ["What?", None, "Who?", "What?"],
        "chat": [chat, chat[:1], None, chat],
        "note": ["0123456789", "abcd", "x", None],
    }
    path = tmp_path / "t.parquet"
    pyarrow.parquet.write_table(pyarrow.table(columns), path)

    said: list[str] = []

    def asked(source: str, **how: Any) -> tuple[list[str], int]:
        how |= {"tokenizer": tokenizer, "template": template_switch(tokenizer, "default")}
        found = read_prompts("d", source, length=100, on_warning=said.append, **how)
        return texts(tokenizer, found), found.duplicates

    assert asked(str(path)) == asked(f"{path}:prompt") == (["What?", "Who?"], 1)
    assert asked(f"{path}:chat") == (["<user>hi<assistant>"], 2)
    assert asked(f"{path}:note", prompt_length=100) == (["0123456789", "abcd", "x"], 0)
    pyarrow.parquet.write_table(pyarrow.table({"text": ["0123"]}), tmp_path / "text.parquet")
    assert asked(f"{tmp_path}/text.parquet:text") == (["01"], 0)
    assert not said
    # It may be a column of questions.
    assert asked(f"{path}:note") == (["01234", "ab", "x"], 0)
    assert len(said) == 1 and "of column 'note' the first half is the prompt" in said[0]
