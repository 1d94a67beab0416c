"""Text files and JSONL, read a part or a line at a time: a file may be larger than memory."""

from __future__ import annotations

import codecs
import contextlib
import io
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from moeprune.errors import DomainError
from moeprune.kinds import kind_of
from moeprune.observe.distinct import Numbers, picked

_ONE_A_LINE = "Write one object a line."
_CHUNK = 2**20


def jsonl_rows(path: Path) -> Iterator[tuple[Any, str]]:
    """What stands in each line of a JSONL file, and its place; one line in memory at a time.

    Raises:
        DomainError: the file is missing or no JSONL.
    """
    for _, row, where in numbered_rows(path):
        yield row, where


def numbered_rows(path: Path, only: Numbers | None = None) -> Iterator[tuple[int, Any, str]]:
    """As :func:`jsonl_rows`, behind the number of the line; of all lines, or of those in ``only``.

    Raises:
        DomainError: as there.
    """
    for number, line in picked(_lines(path), only):
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
        yield number, row, where


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


def parts_of(path: Path, *, chunk: int = _CHUNK) -> Iterator[str]:
    """The parts of a text file between form feeds; every end of a line becomes a newline.

    Args:
        path: of the file.
        chunk: bytes that are read at a time, 4 at least.

    Raises:
        DomainError: the file is missing, or no text.
    """
    decoder = codecs.getincrementaldecoder("utf-8")()
    lines = io.IncrementalNewlineDecoder(None, translate=True)
    begun: list[str] = []
    offset = 0
    with _readable(path), path.open("rb") as file:
        data = file.read(chunk).removeprefix(codecs.BOM_UTF8)
        while True:
            waiting = len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as problem:
                raise _no_text(path, offset - waiting + problem.start) from None
            *ended, rest = lines.decode(text, final=not data).split("\f")
            for part in ended:
                yield "".join([*begun, part])
                begun = []
            begun.append(rest)
            if not data:
                break
            offset += len(data)
            data = file.read(chunk)
    yield "".join(begun)


def text_of(path: Path, *, newline: str | None = None) -> str:
    """All of a text file.

    Args:
        path: of the file.
        newline: as of ``open``; None: every end of a line becomes a newline.

    Raises:
        DomainError: it is missing, or no text.
    """
    with _readable(path):
        try:
            with path.open(encoding="utf-8-sig", newline=newline) as file:
                return file.read()
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
        raise DomainError(f"{path} does not exist; check the path.") from None
    except IsADirectoryError:
        kind = kind_of(path) or "a folder"
        raise DomainError(f"{path} is {kind}; name a .jsonl, .txt or .parquet file.") from None
    except (OSError, ValueError) as problem:  # ValueError: a path with a NUL
        reason = getattr(problem, "strerror", None) or problem
        raise DomainError(f"{path} cannot be read: {reason}.") from problem


def _but(path: Path) -> str:
    """What a file is that was taken for rows, where that is known."""
    kind = kind_of(path)
    return f": {path.name} is {kind}" if kind not in (None, "rows of JSON") else ""
