"""Change single values of a JSON text and leave every other byte as its author wrote it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from json.decoder import JSONDecoder

from moeprune.artefact import Json
from moeprune.errors import CheckpointError

Path = tuple[str, ...]  # keys from the outermost object inwards

_DECODER = JSONDecoder()
_BLANK = " \t\n\r"
_BOM = "\ufeff"


@dataclass(frozen=True, slots=True)
class _Member:
    """One ``"key": value`` of an object, by positions in the text."""

    key: str
    before: str  # blanks in front of the key
    colon: str  # from the end of the key to the start of the value
    start: int  # of the value
    end: int  # of the value


def edit_json_text(text: str, changes: Mapping[Path, Json]) -> str:
    """Set the values at the given key paths; everything else stays, character for character.

    A key that its object repeats is changed everywhere. A key that its object does not have is
    added after the last one, indented like it.

    Args:
        text: a JSON object, byte order mark and line ends as they are.
        changes: path of keys -> new value.

    Raises:
        CheckpointError: the text is not a JSON object, or the object that a path leads to is not in
            it.
    """
    begin = len(text) - len(text.removeprefix(_BOM))
    try:
        body = json.loads(text[begin:])
    except (ValueError, RecursionError) as problem:
        raise CheckpointError(f"config.json is not JSON: {problem}. Repair the file.") from None
    if not isinstance(body, dict):
        raise CheckpointError("config.json is not a JSON object. Repair the file.")
    missing = [path for path in changes if not _contains(body, path)]
    for path in missing:
        if not _contains(body, path[:-1], kind=dict):
            raise CheckpointError(f"config.json has no key {'.'.join(path)!r} to change.")
    for path in changes:
        assert path and not any(path[:n] in changes for n in range(1, len(path)))
    begin = _skip_blank(text, begin)
    pieces = [
        (start, end, json.dumps(changes[path])) for path, start, end in _spans(text, begin, changes)
    ]
    for parent in sorted({path[:-1] for path in missing}):
        new = {path[-1]: changes[path] for path in missing if path[:-1] == parent}
        objects = [at for _, at, _ in _spans(text, begin, {parent: None})] if parent else [begin]
        pieces += [_added(text, at, new) for at in objects if text[at] == "{"]
    for start, end, piece in sorted(pieces, reverse=True):
        text = text[:start] + piece + text[end:]
    return text


def _contains(body: Json, path: Path, kind: type = object) -> bool:
    for key in path:
        if not isinstance(body, dict) or key not in body:
            return False
        body = body[key]
    return isinstance(body, kind)


def _spans(
    text: str, begin: int, changes: Mapping[Path, Json], prefix: Path = ()
) -> Iterator[tuple[Path, int, int]]:
    """Path, start and end of every value that changes, in the object at ``begin``."""
    inner = {path[: len(prefix) + 1] for path in changes if len(path) > len(prefix) + 1}
    for member in _members(text, begin):
        path = (*prefix, member.key)
        if path in changes:
            yield path, member.start, member.end
        elif path in inner and text[member.start] == "{":
            below = {
                longer: value for longer, value in changes.items() if longer[: len(path)] == path
            }
            yield from _spans(text, member.start, below, path)


def _members(text: str, begin: int) -> Iterator[_Member]:
    """The members of the object at ``begin``; the text is known to be JSON."""
    position = begin + 1
    while True:
        key_start = _skip_blank(text, position)
        if text[key_start] == "}":
            return
        key, key_end = _DECODER.raw_decode(text, key_start)
        start = _skip_blank(text, _skip_blank(text, key_end) + 1)
        _, end = _DECODER.raw_decode(text, start)
        yield _Member(key, text[position:key_start], text[key_end:start], start, end)
        position = _skip_blank(text, end)
        if text[position] == "}":
            return
        position += 1


def _skip_blank(text: str, position: int) -> int:
    while position < len(text) and text[position] in _BLANK:
        position += 1
    return position


def _added(text: str, begin: int, new: Mapping[str, Json]) -> tuple[int, int, str]:
    """Where new members go into the object at ``begin``, and their text."""
    members = list(_members(text, begin))
    if not members:
        inside = ", ".join(f"{json.dumps(key)}: {json.dumps(new[key])}" for key in new)
        return begin + 1, begin + 1, inside
    last = members[-1]
    before, colon = last.before, last.colon
    line_end = "\r\n" if "\r\n" in before else "\n"
    unit = before.rpartition("\n")[2] if "\n" in before else None
    if unit is None and len(members) == 1:
        before = " "  # the first key of a one-line object has nothing in front
    pieces = []
    for key, value in new.items():
        lines = json.dumps(value, indent=unit).split("\n")
        body = (line_end + (unit or "")).join(lines)
        pieces.append(f",{before}{json.dumps(key)}{colon}{body}")
    return last.end, last.end, "".join(pieces)
