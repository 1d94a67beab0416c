"""Published rows, converted to rows of a task and checked."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import Any

from moeprune.core.tasks import Protocol, Question
from moeprune.errors import UsageError
from moeprune.evaluate.tasks.fitting import fitted
from moeprune.evaluate.tasks.reading import check_ids
from moeprune.evaluate.tasks.rows import question_of
from moeprune.observe.table_rows import SUFFIXES, table_rows
from moeprune.observe.tables import HUB, HUB_FORM

_SPLIT = re.compile(
    r"(?P<name>.*?)[_.-]?(?:test|validation|valid|val|dev|train)(?:[_.-]\d+-of-\d+)?", re.DOTALL
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Converted:
    """A row as it is written, and the question it is read as."""

    row: Mapping[str, Any]
    question: Question


def converted(
    sources: Sequence[str],
    layout: ModuleType,
    *,
    name: str,
    protocol: Protocol,
    shot: bool = False,
) -> list[Converted]:
    """The rows of tables as rows of a task, in their order.

    Args:
        sources: of tables, or ``NAME=SOURCE``, which makes NAME the domain of its rows; a folder is
            every table in it.
        layout: of the tables.
        name: of the task.
        protocol: by which the questions are asked.
        shot: they are shown solved.

    Raises:
        UsageError: a row is not of the layout, has no label, or two rows have one id.
        DomainError: a table cannot be read.
    """
    found: list[Converted] = []
    places = []
    tables = [table for source in sources for table in _tables(source)]
    for domain, table in tables:
        own = domain or (_name_of(table) if len(tables) > 1 else None)
        count = 0
        for row, where in table_rows(table):
            count += 1
            made = _row(layout, row, count, where)
            if domain or (own and "domain" not in made):
                made["domain"] = own
            if len(tables) > 1:  # each counts from 1, or numbers its own
                made["id"] = f"{own}-{made['id']}"
            question = question_of(made, number=count, name=name, where=where)
            question = fitted(question, protocol, where, shot=shot)
            found.append(Converted(row=made, question=question))
            places.append((question, where))
        if not count:
            raise UsageError(f"{table} has no row. Name another source.")
    check_ids(places)
    return found


def _row(layout: ModuleType, row: Mapping[str, Any], number: int, where: str) -> dict[str, Any]:
    try:
        made: dict[str, Any] = layout.convert(row, number)
    except UsageError as problem:
        called = layout.__name__.rpartition(".")[2]
        hub = f"; the Hub has it at {layout.QUESTIONS}" if layout.QUESTIONS else ""
        raise UsageError(
            f"{where}: {problem}. Name a labelled split in the layout {called!r}{hub}."
        ) from None
    return made


def _tables(source: str) -> list[tuple[str | None, str]]:
    """The domain, where one is named, and the source of every table that is meant."""
    domain, table = _named(source)
    folder = Path(table)
    if table.startswith(HUB) or not table or not folder.is_dir():
        return [(domain, table)]
    found = sorted(path for path in folder.iterdir() if path.suffix in SUFFIXES)
    if not found:
        raise UsageError(f"{table} is a folder without a table ({', '.join(SUFFIXES)}).")
    return [(domain, str(path)) for path in found]


def _named(source: str) -> tuple[str | None, str]:
    name, equals, table = source.partition("=")
    if not equals or set(name) & set("/:\\") or not name.strip() or Path(source).exists():
        return None, source
    return name.strip(), table


def _name_of(table: str) -> str:
    """What the rows of one of several tables are of: its config or file, without the split."""
    hub = HUB_FORM.fullmatch(table) if table.startswith(HUB) else None
    if hub:
        return str(hub["config"] or hub["repo"].partition("/")[2])
    path = Path(table)
    found = _SPLIT.fullmatch(path.stem)
    name = path.stem if found is None else found["name"]
    return name or path.absolute().parent.name or path.stem
