"""The files of a checkpoint folder that are not its weights: which go along, which stay behind."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from moeprune.checkpoint.index import OTHER_WEIGHTS, CheckpointIndex
from moeprune.checkpoint.staging import MARKER
from moeprune.errors import CheckpointError

_SHARD_INDEX = ".safetensors.index.json"


@dataclass(frozen=True, slots=True)
class Sidecars:
    """Names relative to the source folder, with ``/``, sorted.

    Attributes:
        copied: files that the export takes byte for byte.
        left: files and linked folders that it does not take: weights in another form, which
            still hold every expert.
    """

    copied: tuple[str, ...]
    left: tuple[str, ...]


def sidecars_of(index: CheckpointIndex, *, replaced: Iterable[str]) -> Sidecars:
    """Sort the files of the source folder.

    Links to regular files count as files (the Hub's cache is made of them); links to folders are
    not followed. Folders whose name starts with a dot (.git, .cache) are passed over.

    Args:
        index: the source.
        replaced: names at the top of the folder that the export writes itself.

    Raises:
        CheckpointError: a folder of the source cannot be read.
    """
    own = {*replaced, *index.files, index.index_file, MARKER}
    copied: list[str] = []
    left: list[str] = []
    try:
        for folder, subfolders, files in os.walk(index.path, onerror=_fail):
            subfolders[:] = sorted(name for name in subfolders if not name.startswith("."))
            base = Path(folder).relative_to(index.path)
            left += [(base / n).as_posix() for n in subfolders if (Path(folder) / n).is_symlink()]
            for name in files:
                relative = (base / name).as_posix()
                if relative in own or not (Path(folder) / name).is_file():
                    continue
                (left if _is_weights(name) else copied).append(relative)
    except OSError as problem:
        raise CheckpointError(
            f"{problem.filename} cannot be read: {problem.strerror or problem}."
        ) from problem
    return Sidecars(tuple(sorted(copied)), tuple(sorted(left)))


def _is_weights(name: str) -> bool:
    lower = name.lower()
    return lower.endswith((".safetensors", _SHARD_INDEX, ".onnx_data", *OTHER_WEIGHTS)) or (
        lower.endswith((".bin.index.json", ".h5.index.json", ".msgpack.index.json"))
    )


def _fail(problem: OSError) -> None:
    raise problem
