from __future__ import annotations

import copy
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune.checkpoint.config import edit_json_text
from moeprune.errors import CheckpointError

KEYS = st.text(alphabet='ab"\\é\n{}:, ', max_size=3)
LEAVES = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | KEYS
VALUES = st.recursive(
    LEAVES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=4),
    max_leaves=12,
)
OBJECTS = st.dictionaries(KEYS, VALUES, max_size=5)
BLANKS = st.text(alphabet=" \t\r\n", max_size=3)


def paths(body: Any, prefix: tuple[str, ...] = ()) -> list[tuple[str, ...]]:
    found = []
    for key, value in body.items():
        found.append((*prefix, key))
        if isinstance(value, dict):
            found += paths(value, (*prefix, key))
    return found


def spelled(value: Any, blank: Any, spans: list[Any], path: tuple[str, ...] = ()) -> str:
    """JSON text with blanks of its own choice, and the span of every object member's value."""
    if isinstance(value, list):
        items = [f"{blank()}{spelled(item, blank, [])}{blank()}" for item in value]
        return "[" + (",".join(items) or blank()) + "]"
    if not isinstance(value, dict):
        return json.dumps(value, ensure_ascii=blank() == "")
    text = "{"
    for number, (key, item) in enumerate(value.items()):
        text += ("," if number else "") + blank() + json.dumps(key) + blank() + ":" + blank()
        inner: list[Any] = []
        piece = spelled(item, blank, inner, (*path, key))
        spans.append(((*path, key), len(text), len(text) + len(piece)))
        spans += [(p, len(text) + a, len(text) + b) for p, a, b in inner]
        text += piece + blank()
    return text + (blank() if not value else "") + "}"


@settings(max_examples=300, deadline=None)
@given(st.data(), OBJECTS, VALUES)
def test_sets_the_value_and_leaves_every_other_character(
    data: st.DataObject, body: dict[str, Any], new: Any
) -> None:
    spans: list[Any] = []
    lead, tail = data.draw(BLANKS), data.draw(BLANKS)
    bom = data.draw(st.sampled_from(["", "\ufeff"]))
    text = bom + lead + spelled(body, lambda: data.draw(BLANKS), spans) + tail
    if not spans:
        return
    path, start, end = data.draw(st.sampled_from(spans))
    start, end = start + len(bom + lead), end + len(bom + lead)
    edited = edit_json_text(text, {path: new})
    assert edited.startswith(text[:start]) and edited.endswith(text[end:])
    expected = copy.deepcopy(body)
    inner = expected
    for key in path[:-1]:
        inner = inner[key]
    inner[path[-1]] = new
    assert json.loads(edited.removeprefix("\ufeff")) == expected


@settings(max_examples=200, deadline=None)
@given(st.data(), OBJECTS, KEYS, VALUES)
def test_adds_a_top_level_key(
    data: st.DataObject, body: dict[str, Any], key: str, new: Any
) -> None:
    if key in body:
        return
    indent = data.draw(st.sampled_from([None, 0, 1, 2, "\t"]))
    text = json.dumps(body, indent=indent)
    edited = edit_json_text(text, {(key,): new})
    assert json.loads(edited) == body | {key: new}
    assert list(json.loads(edited)) == [*body, key]
    if body and new not in ([], {}):  # exactly what a library would have written in that style
        assert edited == json.dumps(body | {key: new}, indent=indent)


@settings(max_examples=200, deadline=None)
@given(st.data(), OBJECTS, KEYS, LEAVES)
def test_adds_a_key_to_an_inner_object(
    data: st.DataObject, body: dict[str, Any], key: str, new: Any
) -> None:
    inner = [path for path in paths(body) if isinstance(at(body, path), dict)]
    if not inner:
        return
    path = data.draw(st.sampled_from(inner))
    indent = data.draw(st.sampled_from([None, 0, 1, 2, "\t"]))
    expected = copy.deepcopy(body)
    at(expected, path)[key] = new
    edited = edit_json_text(json.dumps(body, indent=indent), {(*path, key): new})
    assert json.loads(edited) == expected
    if at(body, path):  # exactly what a library would have written in that style
        assert edited == json.dumps(expected, indent=indent)


def at(body: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        body = body[key]
    return body


def test_adds_and_changes_in_one_object() -> None:
    changes = {("t", "n"): 2, ("t", "m"): 3, ("k",): 4}
    text = '{"t": {"n": 1}, "t": {"n": 1}, "z": 0}'
    edited = edit_json_text(text, changes)
    assert edited == '{"t": {"n": 2, "m": 3}, "t": {"n": 2, "m": 3}, "z": 0, "k": 4}'


def test_golden() -> None:
    text = (
        '\ufeff{\r\n  "num_experts" :128 , "num_experts_per_tok": 8,\r\n'
        '\t"text_config": {"num_experts": 128, "x": {"num_experts": 1}},\r\n'
        '  "theta": 1e7, "eps": 1.0E-06, "nan": NaN,\r\n'
        '  "s": "\\u00e9\\/ {\\"num_experts\\": 3}"\r\n}\r\n\r\n'
    )
    edited = edit_json_text(text, {("num_experts",): 64, ("text_config", "num_experts"): 7})
    assert edited == text.replace('"num_experts" :128', '"num_experts" :64').replace(
        '{"num_experts": 128', '{"num_experts": 7'
    )


def test_changes_every_duplicate_of_a_key() -> None:
    text = '{"n": 4, "t": {"n": 4}, "n": 4, "t": {"n": 4, "n":[1, {}]}}'
    changed = edit_json_text(text, {("n",): 2, ("t", "n"): 3})
    assert changed == '{"n": 2, "t": {"n": 3}, "n": 2, "t": {"n": 3, "n":3}}'


def test_adds_a_block_in_the_indentation_of_the_text() -> None:
    text = '{\r\n    "a": 1\r\n}'
    edited = edit_json_text(text, {("moeprune",): {"format": 1, "k": [1, 2]}, ("b",): 2})
    assert edited == (
        '{\r\n    "a": 1,\r\n    "moeprune": {\r\n        "format": 1,\r\n        "k": [\r\n'
        '            1,\r\n            2\r\n        ]\r\n    },\r\n    "b": 2\r\n}'
    )
    assert edit_json_text("{}", {("a",): 1, ("b",): [2]}) == '{"a": 1, "b": [2]}'
    assert edit_json_text('{"a":1}', {("b",): 2}) == '{"a":1, "b":2}'


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1,}', '{"a": 1} x', "\ufeff\ufeff{}"])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(CheckpointError):
        edit_json_text(text, {("a",): 2})


@pytest.mark.parametrize("path", [("a", "b"), ("x", "y"), ("t", "l", "z"), ("t", "m", "n")])
def test_a_path_that_is_not_there_is_refused(path: tuple[str, ...]) -> None:
    with pytest.raises(CheckpointError, match=r"no key '"):
        edit_json_text('{"a": 1, "t": {"n": 1, "l": []}}', {path: 2})
