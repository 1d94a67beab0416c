"""``moeprune push``."""

from __future__ import annotations

from pathlib import Path

import click

from moeprune.cli.options import json_option, say
from moeprune.cli.progress import progress


@click.command("push")
@click.argument("out", type=click.Path(path_type=Path), metavar="OUT")
@click.argument("repo_id", metavar="REPO_ID")
@click.option("--private", is_flag=True, help="Create the repository as private.")
@click.option("--revision", help="Branch to push to. Default: the main branch.")
@json_option
def command(out: Path, repo_id: str, private: bool, revision: str | None, as_json: bool) -> None:
    """Upload the exported folder OUT to the Hugging Face Hub as REPO_ID (org/name).

    Uses the token of 'hf auth login' or the HF_TOKEN environment variable.
    """
    from moeprune.stages.push import push

    with progress() as on_progress:
        url = push(out, repo_id, private=private, revision=revision, on_progress=on_progress)
    say({"url": url}, url, as_json=as_json)
