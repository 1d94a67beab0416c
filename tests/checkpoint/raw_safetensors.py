"""Safetensors files written by hand, for types numpy lacks and for headers no library writes."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

Table = Sequence[tuple[str, str, Sequence[int], bytes]]  # name, dtype, shape, data


def pack(header: object, data: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return len(text).to_bytes(8, "little") + text + data


def write(path: Path, table: Table, metadata: Mapping[str, str] | None = None) -> Path:
    header: dict[str, Any] = {"__metadata__": dict(metadata)} if metadata else {}
    data = b""
    for name, dtype, shape, content in table:
        offsets = [len(data), len(data) + len(content)]
        header[name] = {"dtype": dtype, "shape": list(shape), "data_offsets": offsets}
        data += content
    path.write_bytes(pack(header, data))
    return path


def noise(seed: int, size: int) -> bytes:
    return np.random.default_rng(seed).bytes(size)


def folder(
    path: Path, shards: Mapping[str, Table], *, config: object = None, index: object = None
) -> Path:
    """A checkpoint folder; with more than one shard, the index is made unless given."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({"num_experts": 4} if config is None else config))
    for file, table in shards.items():
        write(path / file, table, {"format": "pt"})
    if index is None and list(shards) != ["model.safetensors"]:
        weight_map = {row[0]: file for file, table in shards.items() for row in table}
        index = {"metadata": {"total_size": 0}, "weight_map": weight_map}
    if index is not None:
        (path / "model.safetensors.index.json").write_text(json.dumps(index))
    return path
