"""Whole rows of a table, in its order: of a file, or of a split of a dataset of the Hub."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from moeprune.errors import DomainError, UsageError
from moeprune.kinds import kind_of
from moeprune.observe.quiet import foreign_errors
from moeprune.observe.tables import HUB, HUB_FORM, needs, silent
from moeprune.observe.textfiles import jsonl_rows, text_of

Row = Mapping[str, Any]

SUFFIXES = (".jsonl", ".json", ".csv", ".parquet")
_FORMS = "a .jsonl, .json, .csv or .parquet file, or hf:ORG/DATASET[/CONFIG]:SPLIT"


def table_rows(source: str) -> Iterator[tuple[Row, str]]:
    """Every row of a table, and its place for messages.

    Args:
        source: a ``.jsonl``, ``.json`` (a list of rows), ``.csv`` (with a line of names, values are
            texts) or ``.parquet`` file, or ``hf:ORG/DATASET[/CONFIG]:SPLIT``. Code of a dataset is
            never run.

    Raises:
        UsageError: another source, or a library that is not installed.
        DomainError: it is missing, or no such table.
    """
    if source.startswith(HUB):
        return _checked(_hub(source))
    path = Path(source)
    read = {".jsonl": jsonl_rows, ".json": _json, ".csv": _csv, ".parquet": _parquet}
    assert set(read) == set(SUFFIXES)
    if path.suffix not in read:
        kind = kind_of(path) if source else None
        raise UsageError(f"{source!r} is no table{f' but {kind}' if kind else ''}. Name {_FORMS}.")
    return _checked(read[path.suffix](path))


def _checked(rows: Iterator[tuple[Any, str]]) -> Iterator[tuple[Row, str]]:
    for row, where in rows:
        if not isinstance(row, Mapping):
            raise DomainError(f"{where} is a {type(row).__name__}, not a row with names.")
        yield row, where


def _json(path: Path) -> Iterator[tuple[Any, str]]:
    text = text_of(path)
    if not text.lstrip().startswith("["):  # one row a line, as datasets and pandas may write it
        yield from jsonl_rows(path)
        return
    try:
        rows = json.loads(text)
    except (ValueError, RecursionError) as problem:
        reason = str(problem).partition(";")[0]
        raise DomainError(f"{path} is not a JSON list of rows ({reason}).") from None
    for number, row in enumerate(rows, start=1):
        yield row, f"{path}, row {number}"


def _csv(path: Path) -> Iterator[tuple[Any, str]]:
    reader = csv.DictReader(io.StringIO(text_of(path, newline=""), newline=""), strict=True)
    try:
        for row in reader:
            where = f"{path}, line {reader.line_num}"
            if None in row or None in row.values():
                raise DomainError(f"{where} has more or fewer values than the first line names.")
            yield row, where
    except csv.Error as problem:
        raise DomainError(f"{path}, after line {reader.line_num} is not CSV ({problem}).") from None


def _parquet(path: Path) -> Iterator[tuple[Any, str]]:
    if not path.is_file():
        raise DomainError(f"{path} is no file; name a .parquet file.")
    try:
        import pyarrow.parquet
    except ImportError:
        raise UsageError(needs(str(path), "pyarrow")) from None
    problem = foreign_errors(
        f"{path} cannot be read as parquet", "Write it again.", error=DomainError
    )
    number = 0
    with problem, pyarrow.parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(batch_size=1024):
            for row in batch.to_pylist():
                number += 1
                yield row, f"{path}, row {number}"


def _hub(source: str) -> Iterator[tuple[Any, str]]:
    found = HUB_FORM.fullmatch(source)
    if found is None or found["columns"] is not None:
        raise UsageError(f"{source!r} is not hf:ORG/DATASET[/CONFIG]:SPLIT.")
    try:
        import datasets
    except ImportError:
        raise UsageError(needs(source, "datasets")) from None
    problem = foreign_errors(
        f"{source} cannot be read from the Hub",
        "Check its name, configuration and split, the network, and whether it asks you to log in.",
        error=DomainError,
    )
    with silent(datasets), problem:
        stream = datasets.load_dataset(
            found["repo"], found["config"], split=found["split"], streaming=True
        )
        for number, row in enumerate(stream, start=1):
            yield row, f"{source}, row {number}"
