"""Change names in lists and keys of a JSON text; every other byte stays as its author wrote it."""

from __future__ import annotations

import json
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass
from json.decoder import JSONDecoder

from moeprune.errors import CheckpointError

Path = tuple[str, ...]  # keys from the outermost object inwards; "*" is any key
Change = Callable[[str], tuple[str, ...]]

_DECODER = JSONDecoder()
_BLANK = " \t\n\r"
_BOM = "\ufeff"


def edit_json_names(
    text: str, places: Collection[Path], change: Change, *, where: str = "config.json"
) -> str:
    """Replace names at the given places: texts in a list, or in lists in it, or keys of an object.

    An entry that the change makes none of leaves with its comma; one that becomes several is
    followed by the others, spelled and indented like it (an object's value is repeated).

    Args:
        text: a JSON object.
        places: paths of the lists and objects.
        change: a name -> what takes its place; an unchanged name keeps its spelling.
        where: the file, for messages.

    Raises:
        CheckpointError: the text is not a JSON object.
    """
    begin = len(text) - len(text.removeprefix(_BOM))
    try:
        body = json.loads(text[begin:])
    except (ValueError, RecursionError) as problem:
        raise CheckpointError(f"{where} is not JSON: {problem}. Repair the file.") from None
    if not isinstance(body, dict):
        raise CheckpointError(f"{where} is not a JSON object. Repair the file.")
    begin = _skip_blank(text, begin)
    _, end = _DECODER.raw_decode(text, begin)
    return text[:begin] + _edited(text, begin, end, set(places), change) + text[end:]


@dataclass(frozen=True, slots=True)
class _Item:
    """One member of an object or item of a list: ``before name colon value after``."""

    before: str
    key: str | None  # as written, quotes included
    colon: str
    start: int  # of the value
    end: int
    after: str


def _edited(text: str, start: int, end: int, places: Collection[Path], change: Change) -> str:
    if text[start] not in "{[":
        return text[start:end]
    if () in places:
        return _renamed(text, start, end, change)
    if not places:
        return text[start:end]
    items = list(_items(text, start))
    pieces = []
    for number, item in enumerate(items):
        name = str(number) if item.key is None else json.loads(item.key)
        deeper = {place[1:] for place in places if place and place[0] in ("*", name)}
        value = _edited(text, item.start, item.end, deeper, change)
        pieces.append(f"{item.before}{item.key or ''}{item.colon}{value}{item.after}")
    return text[start] + ",".join(pieces) + (text[end - 1] if items else text[start + 1 : end])


def _renamed(text: str, start: int, end: int, change: Change) -> str:
    items = list(_items(text, start))
    if not items:
        return text[start:end]
    first, last = items[0], items[-1]
    # Blanks before an entry that is not the first; a list of one on one line shows none.
    between = items[1].before if len(items) > 1 else first.before or " "
    pieces: list[str] = []
    for item in items:
        for number, entry in enumerate(_entries(text, item, change)):
            before = between if number or item is first else item.before
            # The blanks before the closing bracket belong to the bracket.
            after = "" if item is last else item.after
            pieces.append(f"{before if pieces else first.before}{entry}{after}")
    closing = last.after if pieces else ""
    return f"{text[start]}{','.join(pieces)}{closing}{text[end - 1]}"


def _entries(text: str, item: _Item, change: Change) -> Iterator[str]:
    """What takes the place of one item: its text, or that of several."""
    value = text[item.start : item.end]
    written = value if item.key is None else item.key
    if not written.startswith('"'):
        yield _renamed(text, item.start, item.end, change) if value.startswith("[") else value
        return
    name = json.loads(written)
    for new in change(name):
        spelled = written if new == name else json.dumps(new)
        yield spelled if item.key is None else f"{spelled}{item.colon}{value}"


def _items(text: str, start: int) -> Iterator[_Item]:
    """Members of the object or items of the list at ``start``; the text is known to be JSON."""
    keyed = text[start] == "{"
    position = start + 1
    while True:
        name = _skip_blank(text, position)
        if text[name] in "}]":
            return
        before, key, colon, at = text[position:name], None, "", name
        if keyed:
            _, key_end = _DECODER.raw_decode(text, name)
            at = _skip_blank(text, _skip_blank(text, key_end) + 1)
            key, colon = text[name:key_end], text[key_end:at]
        _, end = _DECODER.raw_decode(text, at)
        position = _skip_blank(text, end)
        yield _Item(before, key, colon, at, end, text[end:position])
        if text[position] in "}]":
            return
        position += 1


def _skip_blank(text: str, position: int) -> int:
    while position < len(text) and text[position] in _BLANK:
        position += 1
    return position
