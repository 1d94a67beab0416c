"""Upload a folder to the Hub as a model repository.

One call of the client's ``upload_folder``: since huggingface_hub 2 it streams, commits large
folders in parts and resumes when it is repeated, which ``upload_large_folder`` did before it was
removed; and it leaves no state behind in the folder.
"""

from __future__ import annotations

import re
from fnmatch import fnmatchcase
from pathlib import Path

from moeprune.core.progress import OnProgress, Progress, ignore
from moeprune.errors import HubError, UsageError
from moeprune.hub.problems import bars_on_terminals_only, client_errors, explain
from moeprune.hub.resolve import is_hub_id

# Caches and leftovers are nobody's business; a .gitignore would make the Hub drop files silently.
NOT_UPLOADED = (".cache/*", "*/.cache/*", ".git/*", "*/.git/*", ".gitignore", "*.partial")
# Weights of an earlier push: a stale model.safetensors would be loaded instead of new shards.
REPLACED = ("model.safetensors", "model-*-of-*.safetensors", "model.safetensors.index.json")

_NAME = re.compile(r"[A-Za-z0-9]([\w.-]*\w)?", re.ASCII)


def upload(
    folder: Path,
    repo_id: str,
    *,
    private: bool = False,
    revision: str | None = None,
    commit_message: str | None = None,
    token: str | None = None,
    on_progress: OnProgress = ignore,
) -> str:
    """Create the repository if need be and upload every file of ``folder``.

    Weights of an earlier push that this folder does not hold are removed in the same commit; other
    files of the repository stay.

    Args:
        folder: what to upload; hidden caches are left out.
        repo_id: ``org/name``, or ``name`` under the user's own name.
        private: a new repository is private; an existing one stays as it is.
        revision: branch to push to; made if it is not there.
        commit_message: first line of the commit.
        token: of the Hub; default is the one of ``hf auth login`` or ``HF_TOKEN``. It is never
            part of a message.
        on_progress: told bytes at the beginning and the end; the client draws its own bars.

    Returns:
        URL of the repository (and revision).

    Raises:
        UsageError: a malformed repository id, revision or token.
        HubError: the Hub refused, could not be reached, or dropped files.
    """
    check_repo_id(repo_id)
    _check_token(token)
    if revision is not None and (not revision or re.search(r"[\s~^:?*\[\\]|\.\.", revision)):
        raise UsageError(f"{revision!r} cannot name a branch. Use letters, digits, '-' and '/'.")
    files = uploaded_files(folder)
    total = sum((folder / name).stat().st_size for name in files)
    on_progress(Progress("push", 0, total, "bytes"))
    try:
        with bars_on_terminals_only():
            url, lost = _send(folder, repo_id, files, private, revision, commit_message, token)
        message = _lost(repo_id, lost, len(files)) if lost else ""
    except client_errors() as error:
        message = explain(error, repo_id=repo_id, revision=revision, writing=True, token=token)
    if message:
        raise HubError(message)  # outside the except block: see moeprune.hub.problems
    on_progress(Progress("push", total, total, "bytes"))
    return url


def check_repo_id(repo_id: str) -> None:
    """Check how a repository id is spelled, before anything is asked of the Hub.

    Raises:
        UsageError: it is malformed.
    """
    bare = _NAME.fullmatch(repo_id) is not None and is_hub_id(f"me/{repo_id}")
    if not bare and not is_hub_id(repo_id):
        raise UsageError(
            f"{repo_id!r} is not a repository id. Write ORG/NAME with letters, digits, '-', '_' "
            "and '.', at most 96 characters, no '--' or '..'."
        )


def uploaded_files(folder: Path) -> list[str]:
    """Paths in ``folder`` that an upload takes, relative, with '/', sorted."""
    found = (path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file())
    return sorted(
        name for name in found if not any(fnmatchcase(name, pattern) for pattern in NOT_UPLOADED)
    )


def _lost(repo_id: str, lost: list[str], total: int) -> str:
    return (
        f"{repo_id} lacks {len(lost)} of {total} files after the upload (first: {lost[0]}). Remove "
        "any .gitignore from the repository and push again."
    )


def _check_token(token: str | None) -> None:
    if token is not None and not re.fullmatch(r"[!-~]+", token):
        # Not shown: what was pasted may be most of a secret.
        raise UsageError(
            "the token is empty or holds a space or a letter that no token has. Copy it again."
        )


def _send(
    folder: Path,
    repo_id: str,
    files: list[str],
    private: bool,
    revision: str | None,
    commit_message: str | None,
    token: str | None,
) -> tuple[str, list[str]]:
    """Do the work; returns the URL and the files that are not there afterwards."""
    from huggingface_hub import HfApi

    api = HfApi(token=token)
    # None, not False: a public default would override the choice an organisation made.
    created = api.create_repo(repo_id, private=True if private else None, exist_ok=True)
    full_id = created.repo_id
    if revision is not None and not revision.startswith("refs/"):
        api.create_branch(full_id, branch=revision, exist_ok=True)
    api.upload_folder(
        repo_id=full_id,
        folder_path=folder,
        revision=revision,
        commit_message=commit_message or "Upload a model pruned with moeprune",
        ignore_patterns=list(NOT_UPLOADED),
        delete_patterns=list(REPLACED),
    )
    there = set(api.list_repo_files(full_id, revision=revision))
    lost = [name for name in files if name not in there]
    url = str(created) if revision is None else f"{created}/tree/{revision}"
    return url, lost
