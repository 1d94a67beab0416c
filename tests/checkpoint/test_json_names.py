"""Names in lists and keys change; every other character stays."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune.checkpoint.names import edit_json_names
from moeprune.errors import CheckpointError

NAMES = st.text(alphabet='ab"\\é\n{}[],: ', max_size=3)
VALUES = st.recursive(
    st.none() | st.integers() | NAMES,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(NAMES, inner, max_size=3),
    max_leaves=10,
)
INDENTS = st.sampled_from([None, 0, 1, 2, "\t"])


def twice_or_not(name: str) -> tuple[str, ...]:
    """Short names leave, names with an 'a' become two."""
    if len(name) == 1:
        return ()
    return (name + "1", name + "2") if "a" in name else (name,)


def by_hand(value: Any) -> Any:
    """The same change on parsed JSON, for a list (and lists in it) or an object."""
    if isinstance(value, dict):
        return {new: item for key, item in value.items() for new in twice_or_not(key)}
    if not isinstance(value, list):
        return value
    made: list[Any] = []
    for item in value:
        if isinstance(item, str):
            made += twice_or_not(item)
        else:
            made.append(by_hand(item) if isinstance(item, list) else item)
    return made


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=3), VALUES, INDENTS)
def test_equals_the_change_on_parsed_json(other: dict[str, Any], value: Any, indent: Any) -> None:
    body = {**other, "q": {"x": {"names": value, "kept": value}, "names": value}}
    text = json.dumps(body, indent=indent)
    edited = edit_json_names(text, [("q", "*", "names")], twice_or_not)
    wanted = {**other, "q": {"x": {"names": by_hand(value), "kept": value}, "names": value}}
    assert json.loads(edited) == wanted
    if isinstance(value, list | dict) and by_hand(value) and all_flat(value):
        # What a library would have written in that style, entry for entry.
        assert edited == json.dumps(wanted, indent=indent)


def all_flat(value: Any) -> bool:
    items = value.values() if isinstance(value, dict) else value
    return not any(isinstance(item, list | dict) for item in items)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(NAMES, VALUES, max_size=4), INDENTS, st.sampled_from(["", "\ufeff", " "]))
def test_nothing_to_change_changes_nothing(body: dict[str, Any], indent: Any, lead: str) -> None:
    text = lead + json.dumps(body, indent=indent) + "\r\n"
    assert edit_json_names(text, [("*",), ("*", "*")], lambda name: (name,)) == text


def test_golden() -> None:
    text = '{\r\n "q": {"ignore": [ "a.1" , "b.2","c\\u002e3"\r\n ], "n": 1e0}, "o": {"b.2" :{ }}}'
    changes = {"a.1": ("a.1",), "b.2": ("b.9", "b.8"), "c.3": ()}
    edited = edit_json_names(text, [("q", "ignore"), ("o",)], changes.__getitem__)
    assert edited == (
        '{\r\n "q": {"ignore": [ "a.1" , "b.9", "b.8"\r\n ], "n": 1e0}, '
        '"o": {"b.9" :{ }, "b.8" :{ }}}'
    )


def test_all_entries_may_leave() -> None:
    assert edit_json_names('{"a": [\n "x"\n]}', [("a",)], lambda _: ()) == '{"a": []}'
    assert edit_json_names('{"a": {"x": 1}}', [("a",)], lambda _: ()) == '{"a": {}}'


@pytest.mark.parametrize("text", ["", "{", "[1]", '{"a": 1} x'])
def test_other_texts_are_refused(text: str) -> None:
    with pytest.raises(CheckpointError, match=r"h\.json"):
        edit_json_names(text, [("a",)], lambda name: (name,), where="h.json")
