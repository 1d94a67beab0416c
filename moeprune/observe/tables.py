"""Documents from tables: a parquet file, or a dataset of the Hub, read as a stream."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from moeprune.errors import DomainError, UsageError
from moeprune.observe.distinct import Distinct, Numbers, Source, held, source_of_file
from moeprune.observe.quiet import foreign_errors
from moeprune.observe.rows import (
    Document,
    column_document,
    column_question,
    columns_of,
    row_has_text,
)

HUB = "hf:"

# A stream is shuffled by drawing from this many rows that were read ahead.
SHUFFLED = 10_000
# Bytes of a table that are rows in memory at a time.
_BATCH = 2**24
# Bytes of a column that are read at a time.
_BUFFER = 2**20

_PARQUET = re.compile(r"(?P<path>.*\.parquet)(?::(?P<columns>[^:/\\]+))?", re.DOTALL)
HUB_FORM = re.compile(
    r"hf:(?P<repo>[\w.-]+/[\w.-]+)(?:/(?P<config>[^:/]+))?:(?P<split>[^:]+)(?::(?P<columns>[^:]+))?"
)


def parquet_path(source: str) -> Path | None:
    """The file that ``FILE.parquet`` or ``FILE.parquet:COLUMN`` names; None: it names none."""
    found = _PARQUET.fullmatch(source)
    return Path(found["path"]) if found and not source.startswith(HUB) else None


def columns_named(source: str) -> str | None:
    """``COLUMN`` or ``A+B`` of a table, None where the source names none."""
    found = (HUB_FORM if source.startswith(HUB) else _PARQUET).fullmatch(source)
    return found["columns"] if found else None


def read_parquet(source: str, *, prompts: bool = False) -> Source:
    """Read ``FILE.parquet`` or ``FILE.parquet:COLUMN``; see :func:`column_document` for columns.

    Raises:
        UsageError: pyarrow is not installed.
        DomainError: the file is missing, is no parquet, lacks the column, or holds no text.
    """
    found = _PARQUET.fullmatch(source)
    assert found is not None
    path, columns = Path(found["path"]), found["columns"]
    if not path.is_file():
        raise DomainError(f"{path} is no file; name a .parquet file.")
    try:
        import pyarrow.parquet
    except ImportError:
        raise UsageError(needs(source, "pyarrow")) from None

    def read(only: Numbers | None) -> Iterator[tuple[int, Document]]:
        problem = foreign_errors(
            f"{path} cannot be read as parquet", "Write it again.", error=DomainError
        )
        # By default all of a row group is read at once, and one may be the whole file.
        piecewise = {"pre_buffer": False, "buffer_size": _BUFFER}
        with problem, pyarrow.parquet.ParquetFile(path, **piecewise) as file:
            wanted = _wanted(file.schema_arrow.names, columns, path, path.name, prompts=prompts)
            for number, row in _parquet_rows(file, wanted, only):
                where = f"{path}, row {number}"
                yield number, _document(row, columns, where, prompts=prompts)

    return source_of_file(path.name if columns is None else f"{path.name}:{columns}", read, path)


def _document(row: Any, columns: str | None, where: str, *, prompts: bool) -> Document:
    if prompts:
        return column_question(row, columns, where)
    return column_document(row, columns, where)


def _wanted(
    have: list[str], columns: str | None, where: object, named: str, *, prompts: bool
) -> list[str]:
    """The columns to read, so that a table's other columns cost nothing: pictures, too."""
    if columns is None:
        wanted = [name for name in have if name in ("text", "messages", "prompt", "completion")]
        missing = [] if row_has_text(wanted, prompts=prompts) else ["text", "messages"]
    else:
        wanted = columns_of(columns, have)
        missing = [name for name in wanted if name not in have][:1]
    if missing:
        what = " or ".join(map(repr, missing))
        raise DomainError(
            f"{where} has no column {what}; it has {', '.join(have)}. "
            f"Name one of them: {named}:COLUMN."
        )
    return wanted


def _parquet_rows(
    file: Any, wanted: list[str], only: Numbers | None
) -> Iterator[tuple[int, Mapping[str, Any]]]:
    """Rows with their numbers, from 1 on; row groups without one in ``only`` are not read."""
    groups = [file.metadata.row_group(group) for group in range(file.metadata.num_row_groups)]
    size = sum(group.total_byte_size for group in groups)
    rows = max(1, min(1024, _BATCH * file.metadata.num_rows // max(1, size)))
    at = 0
    for index, group in enumerate(groups):
        end = at + group.num_rows
        if len(_inside(only, at, end)):
            for batch in file.iter_batches(batch_size=rows, row_groups=[index], columns=wanted):
                inside = _inside(only, at, at + batch.num_rows)
                found = batch.to_pylist() if len(inside) else []
                for row in inside:
                    yield at + row + 1, found[row]
                at += batch.num_rows
        at = end


def _inside(only: Numbers | None, at: int, end: int) -> Sequence[int]:
    """Which rows of a table from row ``at`` to ``end`` are wanted, counted from ``at``."""
    if only is None:
        return range(end - at)
    first, last = np.searchsorted(only, (at, end), side="right")
    inside: list[int] = (only[first:last] - at - 1).tolist()
    return inside


def read_hub(
    source: str, *, samples: int | None, seed: int, skip: int = 0, prompts: bool = False
) -> Source:
    """Read ``hf:ORG/DATASET[/CONFIG]:SPLIT[:COLUMN]`` as a stream, as far as it is needed.

    The stream is shuffled by ``seed`` with a buffer of ``SHUFFLED`` rows; of its documents that are
    neither blank nor equal to an earlier one, the first ``skip`` are left out and the next
    ``samples`` taken. Code of the repository is never run.

    Raises:
        UsageError: ``datasets`` is not installed, ``samples`` is missing, or the source is
            misspelt.
        DomainError: the dataset cannot be read, lacks the column, or holds no text.
    """
    found = HUB_FORM.fullmatch(source)
    if found is None:
        raise UsageError(f"{source!r} is not hf:ORG/DATASET[/CONFIG]:SPLIT[:COLUMN].")
    if samples is None:
        raise UsageError(
            f"{source} is read as a stream, which may be very long. Say how many documents to "
            "take: --samples N."
        )
    try:
        import datasets
    except ImportError:
        raise UsageError(needs(source, "datasets")) from None
    distinct = Distinct()
    kept: list[Document] = []
    problem = foreign_errors(
        f"{source} cannot be read from the Hub",
        "Check its name, configuration and split, and the network.",
        error=DomainError,
    )
    with silent(datasets), problem:
        stream = datasets.load_dataset(
            found["repo"], found["config"], split=found["split"], streaming=True
        )
        if stream.column_names is not None:  # not every format states them
            named = source if found["columns"] is None else source.rpartition(":")[0]
            stream = stream.select_columns(
                _wanted(stream.column_names, found["columns"], source, named, prompts=prompts)
            )
        stream = stream.shuffle(seed=seed, buffer_size=SHUFFLED)
        for number, row in enumerate(stream, start=1):
            where = f"{source}, row {number} of the shuffled stream"
            document = _document(row, found["columns"], where, prompts=prompts)
            if distinct.takes(document):
                kept.append(document)
            if len(kept) == skip + samples:
                break
    if len(kept) <= skip:
        raise DomainError(f"{source} holds no document after the first {skip}. Take fewer.")
    return held(source, kept[skip:], duplicates=distinct.dropped)


@contextlib.contextmanager
def silent(datasets: Any) -> Iterator[None]:
    """No progress bars and no log lines of datasets below an error, inside the block only."""
    logging = datasets.utils.logging
    level, bars = logging.get_verbosity(), datasets.is_progress_bar_enabled()
    logging.set_verbosity_error()
    datasets.disable_progress_bars()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            datasets.enable_progress_bars()


def needs(source: str, library: str) -> str:
    """One line: what to install, to read a source."""
    return f'{source} needs {library}, which is not installed: pip install "moeprune[data]".'
