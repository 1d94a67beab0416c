"""Documents from a SOURCE: built-in text, a file, or a dataset. No tokenizer here."""

from __future__ import annotations

import itertools
import sysconfig
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

from moeprune.artefact import read_json
from moeprune.errors import DomainError, UsageError
from moeprune.kinds import kind_of
from moeprune.observe.distinct import Numbers, Source, picked, source_of, source_of_file
from moeprune.observe.rows import Document, row_document, row_question
from moeprune.observe.tables import HUB, parquet_path, read_hub, read_parquet
from moeprune.observe.textfiles import numbered_rows, parts_of, text_of
from moeprune.packaged import calibration_folder
from moeprune.plugins import known

BUILTIN = "builtin:"


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
        return source_of_file(path.name, partial(_jsonl, path, prompts=prompts), path)
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
        path = calibration_folder() / str(entry.get("file", f"{name}.jsonl"))
        documents = (document for _, document in _jsonl(path))
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
                found.append(Document(text=text_of(path), where=module))
                break
    return found


def _plain_text(path: Path) -> Source:
    parts = parts_of(path)
    first = [next(parts)]
    second = list(itertools.islice(parts, 1))
    if second and path.is_file():
        del first, second, parts
        return source_of_file(path.name, partial(_text_parts, path), path)
    texts = enumerate(itertools.chain(first, second, parts), start=1)
    documents = (_part(path, number, text) for number, text in texts)
    return source_of(path.name, documents, path, running=not second)


def _text_parts(path: Path, only: Numbers | None = None) -> Iterator[tuple[int, Document]]:
    for number, part in picked(parts_of(path), only):
        yield number, _part(path, number, part)


def _part(path: Path, number: int, text: str) -> Document:
    return Document(text=text, where=f"{path}, part {number}")


def split_name(text: str) -> tuple[str | None, Path]:
    """``NAME=FILE`` or ``FILE``; a file that exists under the whole text is that file."""
    name, equals, file = text.partition("=")
    if not equals or "/" in name or Path(text).exists():
        return None, Path(text)
    return name.strip(), Path(file)


def _jsonl(
    path: Path, only: Numbers | None = None, *, prompts: bool = False
) -> Iterator[tuple[int, Document]]:
    for number, row, where in numbered_rows(path, only):
        if prompts:
            yield number, row_question(row, where)
        else:
            yield number, row_document(row, where)
