"""Documents from a SOURCE: built-in text, a file, or a dataset. No tokenizer here."""

from __future__ import annotations

import contextlib
import json
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from moeprune.artefact import read_json
from moeprune.errors import DomainError, UsageError
from moeprune.kinds import kind_of
from moeprune.observe.rows import Document, Source, row_question, row_text, source_of
from moeprune.observe.tables import HUB, parquet_path, read_hub, read_parquet
from moeprune.packaged import calibration_folder
from moeprune.plugins import known

BUILTIN = "builtin:"

_ONE_A_LINE = "Write one object a line."


def read_source(
    source: str,
    *,
    samples: int | None = None,
    seed: int = 0,
    skip: int = 0,
    prompts: bool = False,
) -> Source:
    """Read ``builtin:NAME``, a ``.jsonl``, ``.txt`` or ``.parquet`` file, or a dataset of the Hub.

    JSONL rows hold ``text``, or ``messages``, or ``prompt`` + ``completion``. A text file's
    documents end at form feeds; without a form feed it is one running text. Tables are explained
    in :mod:`moeprune.observe.tables`.

    Args:
        source: what to read.
        samples: documents to take of a stream (``hf:``); other sources are read whole.
        seed: of a stream's shuffle.
        skip: documents of a stream to leave out first.
        prompts: read what a model is to answer: ``messages`` up to the answer, ``prompt`` (a text
            or messages) without its completion.

    Raises:
        UsageError: an unknown kind of source, or an optional library that is not installed.
        DomainError: the file is missing, malformed or holds no text.
    """
    if source.startswith(BUILTIN):
        return _builtin(source.removeprefix(BUILTIN))  # plain texts
    if streamed(source):
        return read_hub(source, samples=samples, seed=seed, skip=skip, prompts=prompts)
    if parquet_path(source) is not None:
        return read_parquet(source, prompts=prompts)
    path = Path(source)
    if path.suffix == ".jsonl":
        return source_of(path.name, _jsonl(path, prompts=prompts), path)
    if path.suffix == ".txt":
        return _plain_text(path)
    kind = kind_of(path) if source else None
    raise UsageError(
        f"{source!r} is not a source of text{f' but {kind}' if kind else ''}. Name builtin:NAME, a "
        ".jsonl, .txt or .parquet file, or hf:ORG/DATASET:SPLIT:COLUMN."
    )


def streamed(source: str) -> bool:
    """Whether a source is read as a stream, which draws its documents while reading."""
    return source.startswith(HUB)


def named_again(name: str) -> bool:
    """Whether the name that stats give a source is enough to read it again."""
    return name.startswith((BUILTIN, HUB))


def source_path(source: str) -> Path | None:
    """The file that a source is read from, None where it is no file."""
    return None if named_again(source) else parquet_path(source) or Path(source)


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
    documents: Iterable[Document]
    if entry.get("kind") == "stdlib":
        documents = _standard_library(entry["modules"])
    else:
        documents = _jsonl(calibration_folder() / str(entry.get("file", f"{name}.jsonl")))
    return source_of(f"{BUILTIN}{name}", documents, f"{BUILTIN}{name}")


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
    return source_of(path.name, documents, path, running=len(parts) == 1)


def split_name(text: str) -> tuple[str | None, Path]:
    """``NAME=FILE`` or ``FILE``; a file that exists under the whole text is that file."""
    name, equals, file = text.partition("=")
    if not equals or "/" in name or Path(text).exists():
        return None, Path(text)
    return name.strip(), Path(file)


def _jsonl(path: Path, *, prompts: bool = False) -> Iterator[Document]:
    for row, where in jsonl_rows(path):
        yield (
            row_question(row, where)
            if prompts
            else Document(text=row_text(row, where), where=where)
        )


def jsonl_rows(path: Path) -> Iterator[tuple[Any, str]]:
    """What stands in each line of a JSONL file, and its place; one line in memory at a time.

    Raises:
        DomainError: the file is missing or no JSONL.
    """
    for number, line in enumerate(_lines(path), start=1):
        if not line.strip():
            continue
        where = f"{path}, line {number}"
        try:
            row = json.loads(line)
        except RecursionError:
            raise DomainError(f"{where} is not JSON (nested too deep). {_ONE_A_LINE}") from None
        except ValueError as problem:  # no JSON, or a number of 5,000 digits
            reason = getattr(problem, "msg", None) or str(problem).partition(";")[0]
            reason += f"){_but(path)}. {_ONE_A_LINE}"
            raise DomainError(f"{where} is not JSON ({reason}") from None
        yield row, where


def _lines(path: Path) -> Iterator[str]:
    offset = 0
    with _readable(path), path.open("rb") as file:
        for data in file:
            try:
                line = data.decode("utf-8-sig" if offset == 0 else "utf-8")
            except UnicodeDecodeError as problem:
                raise _no_text(path, offset + problem.start) from None
            offset += len(data)
            # Not splitlines(): JSON strings may hold U+2028 and its like, no ends of lines here.
            yield from line.removesuffix("\n").removesuffix("\r").split("\r")


def _read(path: Path) -> str:
    with _readable(path):
        try:
            return path.read_text(encoding="utf-8-sig")
        except UnicodeDecodeError as problem:
            raise _no_text(path, problem.start) from None


def _no_text(path: Path, byte: int) -> DomainError:
    kind = kind_of(path) or "a file"
    return DomainError(
        f"{path} is {kind}, not UTF-8 text (byte {byte}). Convert it, or name a .jsonl or .txt "
        "file."
    )


@contextlib.contextmanager
def _readable(path: Path) -> Iterator[None]:
    """One line of our own where a file cannot be read."""
    try:
        yield
    except FileNotFoundError:
        raise DomainError(f"{path} does not exist; name a .jsonl or .txt file.") from None
    except IsADirectoryError:
        kind = kind_of(path) or "a folder"
        raise DomainError(f"{path} is {kind}; name a .jsonl or .txt file.") from None
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL
        reason = getattr(problem, "strerror", None) or problem
        raise DomainError(f"{path} cannot be read: {reason}.") from problem


def _but(path: Path) -> str:
    """What a file is that was taken for rows, where that is known."""
    kind = kind_of(path)
    return f": {path.name} is {kind}" if kind not in (None, "rows of JSON") else ""
