"""Documents from a SOURCE: built-in text, a JSONL file or a plain text file. No tokenizer here."""

from __future__ import annotations

import json
import sysconfig
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprune.artefact import read_json
from moeprune.errors import DomainError, UsageError
from moeprune.packaged import calibration_folder
from moeprune.plugins import known

BUILTIN = "builtin:"

_ONE_A_LINE = "Write one object a line."

Messages = tuple[Mapping[str, Any], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Document:
    """One text as the source holds it.

    Attributes:
        text: the text, or the messages of a chat that the tokenizer's template turns into text.
        where: file and line, for messages about it.
    """

    text: str | Messages
    where: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """What a SOURCE holds.

    Attributes:
        name: how stats name it: ``builtin:math``, or a file's name without its folder, so that the
            same file gives the same bytes wherever it lies.
        documents: in file order, none of them blank.
        running: the file is one running text, which is cut into documents of equal length.
    """

    name: str
    documents: tuple[Document, ...]
    running: bool = False


def read_source(source: str) -> Source:
    """Read ``builtin:NAME``, a ``.jsonl`` or a ``.txt`` file.

    JSONL rows hold ``text``, or ``messages``, or ``prompt`` + ``completion``. A text file's
    documents end at form feeds; without a form feed it is one running text.

    Raises:
        UsageError: a kind of source that this version does not read.
        DomainError: the file is missing, malformed or holds no text.
    """
    if source.startswith(BUILTIN):
        return _builtin(source.removeprefix(BUILTIN))
    if source.startswith("hf:"):
        raise UsageError(
            f"{source}: this version reads .jsonl and .txt files. Save the dataset with "
            "datasets.load_dataset(...).to_json('NAME.jsonl') and name that file."
        )
    path = Path(source)
    if path.suffix == ".jsonl":
        return Source(name=path.name, documents=_some(_jsonl(path), path))
    if path.suffix == ".txt":
        return _plain_text(path)
    if path.suffix == ".parquet":
        raise UsageError(
            f"{source}: this version reads .jsonl and .txt files. Convert it with "
            "pandas.read_parquet(...).to_json('NAME.jsonl', orient='records', lines=True)."
        )
    raise UsageError(
        f"{source!r} is not a source of text. Name builtin:NAME, a .jsonl or a .txt file."
    )


def builtin_names() -> tuple[str, ...]:
    """The built-in domains, in the order ``domains.json`` lists them."""
    return tuple(str(entry["name"]) for entry in _builtin_entries())


def _builtin_entries() -> Sequence[Mapping[str, Any]]:
    path = calibration_folder() / "domains.json"
    body = read_json(path, error=DomainError, what="the list of built-in domains")
    entries: list[Mapping[str, Any]] = body["domains"]
    return entries


def _builtin(name: str) -> Source:
    entries = {str(entry["name"]): entry for entry in _builtin_entries()}
    entry = entries[known(name, entries, kind="built-in domain")]
    if entry.get("kind") == "stdlib":
        documents = _standard_library(entry["modules"])
    else:
        documents = _jsonl(calibration_folder() / str(entry.get("file", f"{name}.jsonl")))
    return Source(name=f"{BUILTIN}{name}", documents=_some(documents, f"{BUILTIN}{name}"))


def _standard_library(modules: Sequence[str]) -> list[Document]:
    """Source text of standard-library modules of the running interpreter, none imported."""
    folder = Path(sysconfig.get_paths()["stdlib"])
    found = []
    for module in modules:
        stem = folder.joinpath(*module.split("."))
        # Modules come and go between Python versions: the ones that are here serve.
        for path in (stem.with_name(stem.name + ".py"), stem / "__init__.py"):
            if path.is_file():
                found.append(Document(text=_read(path), where=module))
                break
    return found


def _plain_text(path: Path) -> Source:
    parts = _read(path).split("\f")
    documents = [
        Document(text=part, where=f"{path}, part {number}")
        for number, part in enumerate(parts, start=1)
    ]
    return Source(name=path.name, documents=_some(documents, path), running=len(parts) == 1)


def _jsonl(path: Path) -> list[Document]:
    found = []
    # Not splitlines(): JSON strings may hold U+2028 and its like, which are no ends of lines here.
    for number, line in enumerate(_read(path).split("\n"), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except RecursionError:
            raise DomainError(f"{where} is not JSON (nested too deep). {_ONE_A_LINE}") from None
        except ValueError as problem:  # no JSON, or a number of 5,000 digits
            reason = getattr(problem, "msg", None) or str(problem).partition(";")[0]
            raise DomainError(f"{where} is not JSON ({reason}). {_ONE_A_LINE}") from None
        found.append(Document(text=_row_text(row, where), where=where))
    return found


def _row_text(row: Any, where: str) -> str | Messages:
    if not isinstance(row, dict):
        raise DomainError(f"{where} is a JSON {type(row).__name__}; write one object a line.")
    if "text" in row:
        return _string(row, "text", where)
    if "messages" in row:
        messages = row["messages"]
        if not isinstance(messages, list) or not all(
            isinstance(message, dict) and "role" in message for message in messages
        ):
            raise DomainError(f"{where}: 'messages' must be a list of objects with a 'role'.")
        return tuple(_encodable(message) for message in messages)
    if "prompt" in row and "completion" in row:
        return _string(row, "prompt", where) + _string(row, "completion", where)
    keys = ", ".join(sorted(row)) or "no key"
    raise DomainError(
        f"{where} has {keys}; it needs 'text', or 'messages', or 'prompt' and 'completion'."
    )


def _string(row: Mapping[str, Any], key: str, where: str) -> str:
    value = row[key]
    if not isinstance(value, str):
        raise DomainError(f"{where}: {key!r} is a {type(value).__name__}; it must be a string.")
    return str(_encodable(value))


def _encodable(value: Any) -> Any:
    """``value`` with every lone surrogate replaced: JSON can spell one, no tokenizer encodes it."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode("utf-8")
    if isinstance(value, list):
        return [_encodable(item) for item in value]
    if isinstance(value, dict):
        return {_encodable(key): _encodable(item) for key, item in value.items()}
    return value


def _read(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8-sig")
    except FileNotFoundError:
        raise DomainError(f"{path} does not exist; name a .jsonl or .txt file.") from None
    except UnicodeDecodeError as problem:
        raise DomainError(f"{path} is not UTF-8 text (byte {problem.start}). Convert it.") from None
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL
        reason = getattr(problem, "strerror", None) or problem
        raise DomainError(f"{path} cannot be read: {reason}.") from problem


def _some(documents: Sequence[Document], where: object) -> tuple[Document, ...]:
    kept = tuple(
        document
        for document in documents
        if (document.text.strip() if isinstance(document.text, str) else document.text)
    )
    if not kept:
        raise DomainError(f"{where} holds no document. Give it at least one line of text.")
    return kept
