"""From what a user calls a model to a local folder: the folder itself, or a cached Hub snapshot.

``huggingface_hub`` is imported only when a Hub id is met, so local work stays light. Python files
of a repository are downloaded, because an export copies them, and never run here.
"""

from __future__ import annotations

import re
from pathlib import Path

from moeprune.errors import CheckpointError, HubError, UsageError
from moeprune.kinds import not_a_model

# Weights in other formats (.bin, .pth, .gguf, .onnx) stay on the Hub.
PATTERNS = (
    "*.safetensors",
    "*.json",
    "*.jinja",
    "*.txt",
    "*.model",
    "*.tiktoken",
    "*.py",
    "README.md",
    "LICENSE*",
)
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]*/[\w.-]*\w", re.ASCII)
_SNAPSHOT = re.compile(r"/models--([^/]+?)--([^/]+)/snapshots/[^/]+$")


def is_hub_id(name: str) -> bool:
    """True if ``name`` is spelled as the Hub spells a repository: ``org/name``."""
    return (
        _HUB_ID.fullmatch(name) is not None
        and len(name) <= 96
        and "--" not in name
        and ".." not in name
        and not name.endswith(".git")
    )


def resolve_model(model: str | Path, *, revision: str | None = None) -> Path:
    """Find the folder of a model, downloading it once if it is on the Hub.

    Args:
        model: a local folder (``~`` is expanded), or ``org/name`` on the Hub. A local folder of
            that name wins. A ``Path`` is always local.
        revision: branch, tag or commit on the Hub.

    Returns:
        The folder as given, or the snapshot in the Hub's cache.

    Raises:
        UsageError: a revision of a local folder.
        CheckpointError: neither a folder nor a Hub id.
        HubError: the Hub refused, has no such model or revision, or could not be reached.
    """
    folder = local_folder(model)
    if folder is None:
        return _download(str(model), revision)
    if revision is not None:
        raise UsageError(
            f"--revision {revision!r} is for models on the Hub, and {model} is a local folder. "
            "Leave it out."
        )
    return folder


def local_folder(model: str | Path) -> Path | None:
    """The local folder that ``model`` names, or None where it is an id on the Hub.

    Raises:
        CheckpointError: neither.
    """
    folder = _local(model)
    if folder is None and (isinstance(model, Path) or not is_hub_id(model)):
        raise CheckpointError(
            f"{str(model)!r} is not a folder and not a Hub id. Name a checkpoint folder or "
            "ORG/NAME."
        )
    return folder


def source_name(model: str | Path) -> str:
    """What may be published of where a model came from: its Hub id, or its folder's own name.

    A snapshot in the Hub's cache is known by its Hub id. Never a path: a path names people and
    machines.
    """
    path = Path(model).expanduser()
    if not isinstance(model, Path) and not path.is_dir() and is_hub_id(model):
        return model
    path = path.absolute()
    cached = _SNAPSHOT.search(path.as_posix())
    if cached and is_hub_id(f"{cached[1]}/{cached[2]}"):
        return f"{cached[1]}/{cached[2]}"
    return path.resolve().name or "model"


def _local(model: str | Path) -> Path | None:
    """The local folder ``model`` names, or None if there is nothing of that name."""
    if not str(model) or "\0" in str(model):
        raise CheckpointError(f"{str(model)!r} cannot name a model. Name a folder or ORG/NAME.")
    try:
        path = Path(model).expanduser()
        if path.is_dir():
            return path
        exists = path.exists()
    except (OSError, RuntimeError) as problem:  # RuntimeError: no such user in ~name
        raise CheckpointError(f"{model} cannot be opened: {problem}.") from problem
    if exists:
        raise CheckpointError(not_a_model(path))
    return None


def _download(repo_id: str, revision: str | None) -> Path:
    from huggingface_hub import snapshot_download

    from moeprune.hub.problems import bars_on_terminals_only, client_errors, explain

    try:
        with bars_on_terminals_only():
            return Path(
                snapshot_download(repo_id, revision=revision, allow_patterns=list(PATTERNS))
            )
    except client_errors() as error:
        message = explain(error, repo_id=repo_id, revision=revision)
    raise HubError(message)
