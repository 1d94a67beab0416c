"""Options that several commands share, and the two ways to say a result."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

import click

Command = TypeVar("Command", bound=Callable[..., Any])


def model_argument(function: Command) -> Command:
    """MODEL: a local folder or a Hub id."""
    return click.argument("model", metavar="MODEL")(function)


def output_option(what: str, *, metavar: str = "FILE") -> Callable[[Command], Command]:
    """``-o`` / ``--output``: where the result goes."""
    return click.option(
        "-o",
        "--output",
        type=click.Path(path_type=Path),
        required=True,
        metavar=metavar,
        help=f"Where to write {what}.",
    )


def revision_option(function: Command) -> Command:
    """``--revision`` of a Hub model."""
    return click.option("--revision", help="Branch, tag or commit of a Hub model.")(function)


def trust_option(function: Command) -> Command:
    """``--trust-remote-code``: off unless asked for."""
    return click.option(
        "--trust-remote-code",
        is_flag=True,
        help="Run the Python code that comes with the checkpoint. Off by default.",
    )(function)


def dtype_option(default: str, *, auto: str = "the stored one") -> Callable[[Command], Command]:
    """``--dtype`` the model is loaded in, and what ``auto`` is."""
    return click.option(
        "--dtype",
        type=click.Choice(["auto", "float32", "bfloat16", "float16"]),
        default=default,
        show_default=True,
        help=f"Number type to load the model in; auto is {auto}.",
    )


def device_option(function: Command) -> Command:
    """``--device`` the model runs on."""
    return click.option(
        "--device", help="Where to run, e.g. cpu or cuda:0. Default: a GPU where there is one."
    )(function)


def resume_option(progress: str) -> Callable[[Command], Command]:
    """``--resume`` / ``--no-resume`` of a long job that keeps what it has done in ``progress``."""
    return click.option(
        "--resume/--no-resume",
        default=True,
        show_default=True,
        help=f"Go on where an interrupted run with the same options stopped (its {progress}), or "
        "begin anew.",
    )


def json_option(function: Command) -> Command:
    """``--json``: the result for machines."""
    return click.option("--json", "as_json", is_flag=True, help="Print the result as JSON.")(
        function
    )


def say(result: object, text: str, *, as_json: bool) -> None:
    """Print a result to stdout: ``text`` for people, or ``result`` as JSON.

    What the terminal's encoding lacks is printed as an escape; in JSON it is one anyway.
    """
    if as_json:
        click.echo(json.dumps(result, indent=1))
        return
    encoding = getattr(sys.stdout, "encoding", None) or "utf-8"
    lines = (printable(line) for line in text.split("\n"))
    shown = "\n".join(lines).encode(encoding, "backslashreplace").decode(encoding)
    click.echo(shown)


def printable(line: str) -> str:
    """``line`` with control characters as escapes: a name in a file must not drive a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in line)
