"""``moeprune inspect``."""

from __future__ import annotations

import click

from moeprune.cli.options import json_option, model_argument, revision_option, say


@click.command("inspect")
@model_argument
@revision_option
@json_option
def command(model: str, revision: str | None, as_json: bool) -> None:
    """Show what MODEL is and what can be pruned: family, layers x experts, gating, sizes.

    Reads config.json, the headers of the safetensors files and the routers: seconds at any size.
    """
    from moeprune.cli.inspect_text import inspect_text
    from moeprune.stages.inspect import inspect

    result = inspect(model, revision=revision)
    say(result.to_json(), inspect_text(result), as_json=as_json)
