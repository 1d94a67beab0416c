"""What lies under a name: for messages about a file that was given in the place of another.

Only regular files are opened, and of them only the beginning: a pipe can be read once.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from moeprune.errors import OutputError

# schema -> what such a file is, and who writes it
_OURS = {
    "moeprune.stats": ("stats", "'moeprune calibrate'"),
    "moeprune.plan": ("a plan", "'moeprune plan'"),
    "moeprune.analysis": ("an analysis", "'moeprune analyse'"),
    "moeprune.export": ("the record of an export", "'moeprune export'"),
    "moeprune.recipe": ("a recipe", ""),
    "moeprune.search": ("the state of a search", "'moeprune plan --method evoesap'"),
    "moeprune.task": ("a task", "'moeprune tasks'"),
    "moeprune.run": ("the record of an evaluation", "'moeprune eval'"),
    "moeprune.scan": ("a scan", "'moeprune scan'"),
    "moeprune.comparison": ("a comparison", "'moeprune compare --json'"),
    "moeprune.asked": ("the state of an evaluation", "'moeprune eval'"),
    "moeprune.variants": ("a list of variants", ""),
}
_TOML = ("moeprune.recipe", "moeprune.task", "moeprune.variants")
_BEGINNING = 4 << 20  # bytes; holds any plan, and the header of any stats
_LENGTH = 8  # bytes that state the length of a safetensors header
_LINE = 4096
_CONTROL = re.compile(rb"[\0-\x08\x0e-\x1a\x1c-\x1f]")  # no text holds them
_SCHEMA = re.compile(r"""["']?\bschema["']?\s*[:=]\s*["'](moeprune\.\w+)/""")
_PARTS = ("weights of a model", "the config of a model", "the index of a model")
_PRECIOUS = (*(noun for noun, _ in _OURS.values()), *_PARTS, "rows of JSON", "a table")
_MODEL = "a folder with config.json and the weights, or an id ORG/NAME on the Hub"


def wanted(schema: str) -> str:
    """What a message says is expected: ``a plan, which 'moeprune plan' writes``."""
    noun, writer = _OURS[schema.partition("/")[0]]
    return f"{noun}, which {writer} writes" if writer else noun


def kind_of(path: Path) -> str | None:
    """What lies at ``path``, as a noun; None where there is nothing, or it cannot be looked into.

    Never raises: it is for messages about another failure.
    """
    try:
        if path.is_dir():
            return _folder(path)
        if not path.is_file():
            return None
        with path.open("rb") as file:
            data = file.read(_BEGINNING)
        return _file(path, data, path.stat().st_size)
    except (OSError, ValueError):  # ValueError: a NUL in the name
        return None


def kind_of_json(body: object) -> str | None:
    """What a parsed JSON (or TOML) object is, if it is one of ours or the config of a model."""
    if not isinstance(body, Mapping):
        return None
    schema = body.get("schema")
    name = schema.partition("/")[0] if isinstance(schema, str) else ""
    if name in _OURS:
        return _OURS[name][0]
    if "weight_map" in body:
        return "the index of a model's weights"
    return "the config of a model" if "model_type" in body or "architectures" in body else None


def check_replaced(path: Path, *, own: str) -> None:
    """Fail where a result would take the place of a file of another kind: a slip of the hand.

    Args:
        path: where the result goes.
        own: what it is, e.g. ``"a plan"``; an earlier one may be replaced.

    Raises:
        OutputError: what lies there is one of the kinds that take time to make.
    """
    kind = kind_of(path) or ""
    if kind.startswith(_PRECIOUS) and not kind.startswith(own):
        raise OutputError(f"{path} is {kind} and would be lost. Name another file, or remove it.")


def not_a_model(path: Path) -> str:
    """One line: ``path`` is there, but it is no folder that could hold a model."""
    kind = kind_of(path) or "no folder"
    if kind.startswith(_PARTS):
        return f"{path} is {kind}, one file of it; name the folder that holds it."
    return f"{path} is {kind}, not a model. Name {_MODEL}."


def not_exported(path: Path) -> str:
    """One line: ``path`` lacks the record that every export has."""
    if not path.is_dir():
        what = f"is {kind_of(path) or 'no folder'}" if path.exists() else "does not exist"
        return f"{path} {what}; name the folder that 'moeprune export' wrote."
    return (
        f"{path} is {kind_of(path) or 'a folder'} without moeprune.json, so 'moeprune export' did "
        "not write it. Name an exported folder."
    )


def no_config(folder: Path) -> str:
    """One line: ``folder`` has no config.json."""
    return f"{folder} is {kind_of(folder) or 'a folder'} and has no config.json. Name {_MODEL}."


def _folder(path: Path) -> str:
    names = {item.name for item in path.iterdir()}
    if "config.json" in names:
        return f"the folder of {'an exported' if 'moeprune.json' in names else 'a'} model"
    if "run.json" in names:
        return "a run folder"
    if ".moeprune-partial" in names:
        return "the folder of an unfinished export"
    return "a folder" if names else "an empty folder"


def _file(path: Path, data: bytes, size: int) -> str:
    if not data:
        return "an empty file"
    found = _safetensors(data, size)
    if found is not None:
        return found
    if path.suffix == ".parquet" or data.startswith(b"PAR1"):
        return "a table"
    text = _text(data, whole=len(data) == size)
    if text is None:
        return "a binary file"
    try:
        return kind_of_json(json.loads(text)) or "a JSON file"
    except (ValueError, RecursionError):
        pass
    schema = _SCHEMA.search(text)
    if schema and schema[1] in _OURS:
        # JSON that cannot be parsed is cut short or was edited.
        noun = _OURS[schema[1]][0]
        return noun if schema[1] in _TOML else f"{noun} cut short or edited"
    if _rows(text):
        return "rows of JSON"
    return "a JSON file cut short or edited" if text.lstrip()[:1] == "{" else "a text file"


def _text(data: bytes, *, whole: bool) -> str | None:
    if _CONTROL.search(data[:_LINE]):
        return None
    try:
        # The beginning of a file may end within a letter.
        return codecs.getincrementaldecoder("utf-8-sig")().decode(data, final=whole)
    except UnicodeDecodeError:
        return data.decode("latin-1")


def _rows(text: str) -> bool:
    try:
        return isinstance(json.loads(text.partition("\n")[0]), dict)
    except (ValueError, RecursionError):
        return False


def _safetensors(data: bytes, size: int) -> str | None:
    length = int.from_bytes(data[:_LENGTH], "little")
    if data[_LENGTH : _LENGTH + 1] != b"{" or length > 1 << 32:
        return None
    ours = _SCHEMA.search(data[_LENGTH:_BEGINNING].decode("utf-8", "replace").replace("\\", ""))
    noun = _OURS[ours[1]][0] if ours and ours[1] in _OURS else "weights of a model"
    whole = _LENGTH + length + _data_bytes(data[_LENGTH : _LENGTH + length])
    if size < _LENGTH + length:
        noun = "a safetensors file"
    return f"{noun} cut short at {size:,} of {whole:,} bytes" if size < whole else noun


def _data_bytes(header: bytes) -> int:
    """Bytes of all tensors that a header describes; 0 where it cannot be read."""
    try:
        entries: Any = json.loads(header)
        ends = [entry["data_offsets"][1] for name, entry in entries.items() if name[:2] != "__"]
        return int(max(ends, default=0))
    except (ValueError, KeyError, TypeError, IndexError, AttributeError, RecursionError):
        return 0
