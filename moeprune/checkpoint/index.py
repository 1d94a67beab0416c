"""A checkpoint folder by its headers alone: config, shards and every tensor's byte range."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from moeprune.artefact import Json, canonical_json, read_json
from moeprune.checkpoint.header import TensorEntry, read_header
from moeprune.checkpoint.reader import chunks
from moeprune.core.layout import TensorInfo
from moeprune.errors import CheckpointError
from moeprune.kinds import no_config, not_a_model

__all__ = ["INDEX_FILE", "SINGLE_FILE", "CheckpointIndex", "TensorEntry", "fingerprint"]

SINGLE_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
CONFIG_FILE = "config.json"
_MAX_NAME = 255  # bytes: a longer name is none on any file system
OTHER_WEIGHTS = (".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack", ".onnx", ".ckpt")


@dataclass(frozen=True, kw_only=True)
class CheckpointIndex:
    """What a checkpoint folder holds; no tensor data is read.

    Attributes:
        path: the folder.
        config: config.json, parsed.
        config_text: config.json as it is written, byte order mark and line ends included.
        files: the shards, sorted by name.
        entries: tensor name -> entry, in the order of the disk: file by file, offset by offset.
        metadata: shard -> its ``__metadata__``.
        index_file: name of the index JSON, None for a single ``model.safetensors``.
        index_metadata: the index JSON's ``metadata`` (total_size and what else it states).
    """

    path: Path
    config: dict[str, Json]
    config_text: str
    files: tuple[str, ...]
    entries: dict[str, TensorEntry]
    metadata: dict[str, dict[str, str]]
    index_file: str | None
    index_metadata: dict[str, Json]

    @classmethod
    def open(cls, path: str | Path) -> CheckpointIndex:
        """Read the headers of the checkpoint in folder ``path`` and check them.

        Raises:
            CheckpointError: no folder, no config.json, no safetensors weights, a missing or
                corrupt shard, or an index that contradicts the shards.
        """
        path = Path(path)
        if not path.is_dir():
            raise CheckpointError(
                not_a_model(path)
                if path.exists()
                else f"{path} does not exist; a model is a folder with config.json."
            )
        config, config_text = _read_config(path / CONFIG_FILE)
        index_file, weight_map, index_metadata = _weights(path)
        files = _files(weight_map)
        entries: dict[str, TensorEntry] = {}
        metadata: dict[str, dict[str, str]] = {}
        for file in files:
            if not (path / file).is_file():
                raise CheckpointError(
                    f"{path / file} is missing, but {INDEX_FILE} lists it. "
                    "Download the checkpoint again."
                )
            header = read_header(path / file)
            for name, entry in header.entries.items():
                if name in entries:
                    raise CheckpointError(
                        f"{path}: tensor {name!r} is in two shards, {entries[name].file} and "
                        f"{file}. Remove one and its line in the index."
                    )
                entries[name] = entry
            metadata[file] = header.metadata
        if weight_map is not None:
            _check_weight_map(path, weight_map, entries)
        if not any(entry.info.nbytes for entry in entries.values()):
            raise CheckpointError(f"{path}: its safetensors files hold no tensor with a value.")
        return cls(
            path=path,
            config=config,
            config_text=config_text,
            files=files,
            entries=entries,
            metadata=metadata,
            index_file=index_file,
            index_metadata=index_metadata,
        )

    @property
    def tensors(self) -> dict[str, TensorInfo]:
        """Tensor name -> type, shape and size, in the order of the disk."""
        return {name: entry.info for name, entry in self.entries.items()}

    @property
    def total_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(entry.info.nbytes for entry in self.entries.values())


def weight_files(path: Path) -> tuple[str, ...]:
    """The shards that the checkpoint in folder ``path`` says it has, sorted; none is opened.

    Raises:
        CheckpointError: there are no safetensors weights, or the index cannot be read.
    """
    return _files(_weights(path)[1])


def fingerprint(index: CheckpointIndex, router_names: Iterable[str]) -> str:
    """Hex SHA-256 that tells models apart, however they are sharded.

    It covers the (name, dtype, shape) table of all tensors and the bytes of the routers: two
    models of one shape have other routers.

    Args:
        index: the checkpoint.
        router_names: tensors whose bytes count; their order does not matter.
    """
    table = sorted((name, info.dtype, info.shape) for name, info in index.tensors.items())
    digest = hashlib.sha256(canonical_json(table).encode("utf-8", "surrogatepass"))
    for name in sorted(set(router_names)):
        entry = index.entries[name]
        digest.update(f"\n{canonical_json(name)} ".encode("utf-8", "surrogatepass"))
        for chunk in chunks(index.path / entry.file, entry.start, entry.end):
            digest.update(chunk)
    return digest.hexdigest()


def _files(weight_map: dict[str, str] | None) -> tuple[str, ...]:
    return tuple(sorted(set(weight_map.values()))) if weight_map else (SINGLE_FILE,)


def _weights(path: Path) -> tuple[str | None, dict[str, str] | None, dict[str, Json]]:
    """(name of the index, its weight_map, its metadata); None, None and {} for a single file."""
    single = (path / SINGLE_FILE).is_file()
    if not (path / INDEX_FILE).is_file():
        if not single:
            raise CheckpointError(_no_weights(path))
        return None, None, {}
    weight_map, metadata = _read_weight_map(path / INDEX_FILE)
    if single and SINGLE_FILE not in weight_map.values():
        raise CheckpointError(
            f"{path} holds two sets of weights: {SINGLE_FILE}, and the shards that "
            f"{INDEX_FILE} lists. Remove one of them."
        )
    return INDEX_FILE, weight_map, metadata


def _read_config(path: Path) -> tuple[dict[str, Json], str]:
    try:
        text = path.read_bytes().decode("utf-8")
    except FileNotFoundError:
        raise CheckpointError(no_config(path.parent)) from None
    except UnicodeDecodeError:
        raise CheckpointError(f"{path} is not UTF-8 text. Save it as UTF-8.") from None
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror or problem}.") from problem
    try:
        config = json.loads(text.removeprefix("\ufeff"))
    except (ValueError, RecursionError) as problem:
        raise CheckpointError(f"{path} is not JSON: {problem}. Repair the file.") from None
    if not isinstance(config, dict):
        raise CheckpointError(f"{path} is not a JSON object. Repair the file.")
    return config, text


def _read_weight_map(path: Path) -> tuple[dict[str, str], dict[str, Json]]:
    body = read_json(path, error=CheckpointError, what="the index of the shards")
    weight_map = body.get("weight_map") if isinstance(body, dict) else None
    if not isinstance(weight_map, dict) or not weight_map:
        raise CheckpointError(f"{path} has no weight_map. Download the file again.")
    for name, file in weight_map.items():
        # A shard lies in the folder itself: nothing an index says may lead out of it.
        if (
            not isinstance(file, str)
            or not file.endswith(".safetensors")
            or "\0" in file
            or len(Path(file).parts) != 1
            or len(file.encode("utf-8", "surrogatepass")) > _MAX_NAME
            or "\\" in file
        ):
            raise CheckpointError(
                f"{path}: tensor {name!r} is in {file!r}, which is not the name of a safetensors "
                "file of this folder. Correct the index."
            )
    metadata = body.get("metadata")
    return weight_map, metadata if isinstance(metadata, dict) else {}


def _check_weight_map(
    path: Path, weight_map: dict[str, str], entries: dict[str, TensorEntry]
) -> None:
    for name, file in weight_map.items():
        if name not in entries or entries[name].file != file:
            where = f"it is in {entries[name].file}" if name in entries else "no shard has it"
            raise CheckpointError(
                f"{path / INDEX_FILE} says tensor {name!r} is in {file}, but {where}. "
                "Download the checkpoint again."
            )
    unlisted = [name for name in entries if name not in weight_map]
    if unlisted:
        raise CheckpointError(
            f"{path / entries[unlisted[0]].file} holds tensor {unlisted[0]!r} (and "
            f"{len(unlisted) - 1} more), which {INDEX_FILE} does not list. Add it to the index, "
            "or remove it from the shard."
        )


def _no_weights(path: Path) -> str:
    try:
        names = sorted(item.name for item in path.iterdir())
    except OSError as problem:
        return f"{path} cannot be listed: {problem.strerror or problem}."
    shards = [name for name in names if name.endswith(".safetensors")]
    if shards:
        return (
            f"{path} has {shards[0]}, but neither {SINGLE_FILE} nor {INDEX_FILE}. "
            "Add the index, or give the file that name."
        )
    for name in names:
        if name.endswith(OTHER_WEIGHTS):
            return (
                f"{path} has weights only as {name}; moeprune reads safetensors. Convert it: load "
                "the model with transformers and save_pretrained it."
            )
    return f"{path} has no weights: neither {SINGLE_FILE} nor {INDEX_FILE}."
