"""A command that also has commands of its own: ``plan STATS``, ``plan show PLAN``."""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import click

from moeprune.errors import UsageError


class DefaultCommand(click.Command):
    """Runs itself, unless its first argument names one of the others.

    A file of such a name is reached by ``./show``.

    Attributes:
        others: name -> module that holds the ``command``; imported when it is asked for.
        sections: heading of the help -> names of the parameters under it; the others stand under
            "Options".
        tables: heading of the help -> what else there is to choose, and what it is.
    """

    def __init__(
        self,
        *args: Any,
        others: Mapping[str, str],
        sections: Mapping[str, Collection[str]] | None = None,
        tables: Mapping[str, Mapping[str, str]] | None = None,
        **settings: Any,
    ) -> None:
        super().__init__(*args, **settings)
        self.others = dict(others)
        self.sections = {head: frozenset(names) for head, names in (sections or {}).items()}
        self.tables = {head: dict(rows) for head, rows in (tables or {}).items()}

    def other(self, name: str) -> click.Command:
        """The command of that name."""
        command = importlib.import_module(self.others[name]).command
        assert isinstance(command, click.Command)
        return command

    def make_context(
        self,
        info_name: str | None,
        args: list[str],
        parent: click.Context | None = None,
        **extra: Any,
    ) -> click.Context:
        """As click does, for the command that the first argument names.

        Raises:
            UsageError: it is no file, and nearly the name of one of the others.
        """
        if args and args[0] in self.others:
            name = f"{info_name} {args[0]}"
            return self.other(args[0]).make_context(name, args[1:], parent=parent, **extra)
        if args and not Path(args[0]).exists():
            near = difflib.get_close_matches(args[0], self.others, n=1)
            if near:
                raise UsageError(
                    f"{info_name} {args[0]}: no such file. Did you mean '{info_name} {near[0]}'?"
                )
        return super().make_context(info_name, args, parent=parent, **extra)

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        """As click does, and the others as another first word."""
        return [*super().collect_usage_pieces(ctx), "|", f"{{{'|'.join(self.others)}}}", "…"]

    def format_options(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        """What a table says, the options by section, then the other commands."""
        for head, about in self.tables.items():
            with formatter.section(head):
                formatter.write_dl(list(about.items()))
        rest = frozenset[str]().union(*self.sections.values())
        for head, names in {"Options": None, **self.sections}.items():
            records = (
                option.get_help_record(ctx)
                for option in self.get_params(ctx)
                if isinstance(option, click.Option)
                and (option.name in names if names is not None else option.name not in rest)
            )
            with formatter.section(head):
                formatter.write_dl([record for record in records if record is not None])
        with formatter.section("Other commands"):
            formatter.write_dl(
                [
                    (f"{ctx.info_name} {name}", self.other(name).get_short_help_str(limit=200))
                    for name in self.others
                ]
            )
