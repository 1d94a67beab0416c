"""Reading documents: what each source holds, and one line for each thing that can be wrong."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.errors import DomainError, MoePruneError, UsageError
from moeprune.observe.sources import builtin_names, read_source
from moeprune.observe.textfiles import jsonl_rows


def texts(path: Path | str) -> list[object]:
    return [document.text for document in read_source(str(path)).documents]


def write(path: Path, text: str) -> Path:
    path.write_bytes(text.encode())
    return path


def test_jsonl_rows_hold_text_messages_or_prompt_and_completion(tmp_path: Path) -> None:
    rows = [
        {"text": "plain", "id": 3},
        {"messages": [{"role": "user", "content": "hi"}]},
        {"prompt": "2+2=", "completion": "4"},
        {"text": "   "},
    ]
    path = write(tmp_path / "ä b.jsonl", "\n\n".join(map(json.dumps, rows)) + "\n")
    assert texts(path) == ["plain", ({"role": "user", "content": "hi"},), "2+2=4"]
    assert read_source(str(path)).name == "ä b.jsonl"


@given(st.lists(st.text(min_size=1), min_size=1, max_size=8))
def test_any_text_comes_back_as_it_was_written(
    tmp_path_factory: pytest.TempPathFactory, written: list[str]
) -> None:
    path = tmp_path_factory.getbasetemp() / "any.jsonl"
    body = "\n".join(json.dumps({"text": text}, ensure_ascii=False) for text in written)
    path.write_text(body, encoding="utf-8", newline="\n")
    wanted = list(dict.fromkeys(text for text in written if text.strip()))
    if wanted:
        assert texts(path) == wanted
    else:
        with pytest.raises(DomainError, match="holds no document"):
            texts(path)


def test_text_files_end_documents_at_form_feeds_else_run_on(tmp_path: Path) -> None:
    parts = read_source(str(write(tmp_path / "a.txt", "one\n\nstill one\ftwo\f\n")))
    assert [document.text for document in parts.documents] == ["one\n\nstill one", "two"]
    assert not parts.running
    whole = read_source(str(write(tmp_path / "b.txt", "one\n\ntwo\n")))
    assert whole.running and len(whole.documents) == 1


def test_lines_are_read_one_by_one_however_they_end(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    rows = ['{"text": "a\u2028\x85b"}', '{"text": "ü"}', '{"text": "c"}']
    for end in ("\n", "\r\n", "\r"):
        path.write_bytes(end.join([*rows, ""]).encode())
        assert texts(path) == ["a\u2028\x85b", "ü", "c"]
        assert [where[-1] for _, where in jsonl_rows(path)] == ["1", "2", "3"]
    # What stands further back is not looked at before its turn: a file may be larger than memory.
    path.write_bytes("\n".join(rows[1:]).encode() + b"\n\xff")
    lines = jsonl_rows(path)
    assert [next(lines)[0], next(lines)[0]] == [{"text": "ü"}, {"text": "c"}]
    with pytest.raises(DomainError, match=r"not UTF-8 text \(byte 29\)"):
        next(lines)


def test_a_byte_order_mark_is_no_text(tmp_path: Path) -> None:
    path = tmp_path / "bom.jsonl"
    path.write_bytes(b'\xef\xbb\xbf{"text": "x"}')
    assert texts(path) == ["x"]


def test_a_lone_surrogate_is_replaced(tmp_path: Path) -> None:
    assert texts(write(tmp_path / "s.jsonl", '{"text": "a\\ud800b"}')) == ["a?b"]


def test_lone_surrogates_in_messages_are_replaced(tmp_path: Path) -> None:
    row = '{"messages": [{"role": "user", "content": [{"text": "a\\ud800b", "n": 1}]}]}'
    read = read_source(str(write(tmp_path / "chat.jsonl", row)))
    assert read.documents[0].text == ({"role": "user", "content": [{"text": "a?b", "n": 1}]},)


def test_code_is_read_from_the_running_interpreter_in_the_listed_order() -> None:
    import json.decoder

    source = read_source("builtin:code")
    assert len(source.documents) >= 24
    first = next(document for document in source.documents if document.where == "json.decoder")
    assert first.text == Path(json.decoder.__file__).read_text(encoding="utf-8")


@pytest.mark.parametrize("name", builtin_names())
def test_every_builtin_domain_has_at_least_24_documents_of_300_words(name: str) -> None:
    source = read_source(f"builtin:{name}")
    assert source.name == f"builtin:{name}"
    words = [len(str(document.text).split()) for document in source.documents]
    assert len(words) >= 24
    assert sum(words) / len(words) >= 300


def test_the_six_domains_are_there() -> None:
    wanted = {"math", "code", "commonsense", "science", "instruction", "knowledge"}
    assert set(builtin_names()) == wanted


BAD_JSONL = {
    "not json": ('{"text": "a"}\n{text: b}\n', r"bad\.jsonl, line 2 is not JSON"),
    "deep": ('{"text": ' + "[" * 100_000, r"line 1 is not JSON"),
    "long number": ('{"n": ' + "9" * 5000 + "}", r"line 1 is not JSON \(Exceeds the limit"),
    "array": ('["a"]', r"line 1 is a JSON list; write one object a line"),
    "number": ("3", r"line 1 is a JSON int"),
    "no key": ('\n\n{"content": "a"}', r"line 3 has content; it needs 'text'"),
    "empty row": ("{}", r"line 1 has no key"),
    "text is a list": ('{"text": ["a"]}', r"line 1: 'text' is a list; it must be a string"),
    "text is null": ('{"text": null}', r"line 1 has text \(null\); it needs 'text'"),
    "only a prompt": ('{"prompt": "a"}', r"line 1 has prompt; it needs"),
    "messages": ('{"messages": "hi"}', r"'messages' must be a list of objects"),
    "no role": ('{"messages": [{"content": "hi"}]}', r"with a 'role'"),
    "empty file": ("", r"bad\.jsonl holds no document"),
    "blank lines": ("\n  \n", r"bad\.jsonl holds no document"),
    "empty texts": ('{"text": ""}\n{"text": "  "}', r"bad\.jsonl holds no document"),
    "no messages": ('{"messages": []}', r"bad\.jsonl holds no document"),
}


@pytest.mark.parametrize("case", BAD_JSONL)
def test_bad_lines_are_named(case: str, tmp_path: Path) -> None:
    text, message = BAD_JSONL[case]
    with pytest.raises(DomainError, match=message) as caught:
        read_source(str(write(tmp_path / "bad.jsonl", text)))
    assert "\n" not in str(caught.value)


def test_files_that_are_no_text_are_refused(tmp_path: Path) -> None:
    (tmp_path / "latin.txt").write_bytes("Größe".encode("latin-1"))
    with pytest.raises(DomainError, match=r"latin\.txt is a text file, not UTF-8 text \(byte 2\)"):
        read_source(str(tmp_path / "latin.txt"))
    with pytest.raises(DomainError, match=r"none\.txt does not exist"):
        read_source(str(tmp_path / "none.txt"))
    (tmp_path / "folder.jsonl").mkdir()
    with pytest.raises(DomainError, match=r"folder\.jsonl is an empty folder; name a"):
        read_source(str(tmp_path / "folder.jsonl"))
    with pytest.raises(DomainError, match="cannot be read: embedded null byte"):
        read_source("a\0.txt")
    with pytest.raises(DomainError, match=r"blank\.txt holds no document"):
        read_source(str(write(tmp_path / "blank.txt", " \n\f\n")))


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("hf:org/set:train:text", r"Say how many documents to take: --samples N"),
        ("hf:set:train:text", r"is not hf:ORG/DATASET\[/CONFIG\]:SPLIT\[:COLUMN\]"),
        ("hf:org/set", r"is not hf:ORG"),
        ("notes.md", r"'notes\.md' is not a source of text"),
        ("builtin:maths", r"Did you mean 'math'"),
        ("", r"'' is not a source"),
    ],
)
def test_other_sources_are_refused_with_a_way_out(source: str, message: str) -> None:
    with pytest.raises(UsageError, match=message):
        read_source(source)


def test_of_equal_documents_the_first_is_kept(tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "a"}]}
    turned = {"messages": [{"content": "a", "role": "user"}]}
    rows = [{"text": "a"}, {"text": "b"}, chat, {"text": "a"}, turned, {"text": " a"}, {"text": ""}]
    read = read_source(str(write(tmp_path / "d.jsonl", "\n".join(map(json.dumps, rows)))))
    assert [document.text for document in read.documents] == [
        "a",
        "b",
        ({"role": "user", "content": "a"},),
        " a",
    ]
    assert read.duplicates == 2
    assert read_source(str(write(tmp_path / "d.txt", "x\fy\fx\fx"))).duplicates == 2


@pytest.mark.parametrize("name", builtin_names())
def test_built_in_text_holds_no_duplicates(name: str) -> None:
    assert read_source(f"builtin:{name}").duplicates == 0


def test_errors_are_ours() -> None:
    with pytest.raises(MoePruneError):
        read_source("/nowhere/x.jsonl")
