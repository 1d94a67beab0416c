"""Push an exported folder to the Hugging Face Hub."""

from __future__ import annotations

from pathlib import Path

from moeprune.artefact import check_schema, read_json
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.core.progress import OnProgress, ignore
from moeprune.errors import CheckpointError
from moeprune.kinds import not_exported, wanted
from moeprune.stages.exported import RECORD, SCHEMA


def push(
    out: str | Path,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    commit_message: str | None = None,
    token: str | None = None,
    on_progress: OnProgress = ignore,
) -> str:
    """Upload an exported folder as a model repository.

    Args:
        out: a folder that ``moeprune.export`` wrote; it is checked by its headers first.
        repo_id: ``org/name``; created if it does not exist.
        private: create the repository as private.
        revision: branch to push to; created if it does not exist. Default: the main branch.
        commit_message: first line of the commit.
        token: of the Hub; default is the one of ``hf auth login`` or ``HF_TOKEN``.
        on_progress: told bytes at the beginning and the end.

    Returns:
        URL of the repository.

    Raises:
        CheckpointError: ``out`` is not a complete exported folder.
        UsageError: a malformed repository id, revision or token.
        HubError: the Hub refused or could not be reached.
    """
    folder = Path(out).expanduser()
    if not (folder / RECORD).is_file():
        raise CheckpointError(not_exported(folder))
    record = read_json(folder / RECORD, error=CheckpointError, what=wanted(SCHEMA))
    check_schema(record, schema=SCHEMA, path=folder / RECORD, error=CheckpointError)
    CheckpointIndex.open(folder)
    # Imported late: the client takes half a second, and a bad folder should fail at once.
    from moeprune.hub.upload import upload

    return upload(
        folder,
        repo_id,
        private=private,
        revision=revision,
        commit_message=commit_message,
        token=token,
        on_progress=on_progress,
    )
