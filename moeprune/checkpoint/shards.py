"""What the files of an export will hold, known to the byte before one is written."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from math import prod

from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.index import INDEX_FILE, SINGLE_FILE, CheckpointIndex
from moeprune.errors import CheckpointError

_NUMBERED = re.compile(r"(.*-)(\d+)(-of-)(\d+)(\.safetensors)", re.DOTALL)
_ALIGNMENT = 8


@dataclass(frozen=True, slots=True)
class Shard:
    """One weight file of the export.

    Attributes:
        name: of the file.
        edits: its tensors, in the order of the data.
        header: its first bytes, length field and padding included.
        data_bytes: size of the data after the header.
    """

    name: str
    edits: tuple[TensorEdit, ...]
    header: bytes
    data_bytes: int


def shards_for(
    index: CheckpointIndex, edits: Sequence[TensorEdit], *, shard_bytes: int | None = None
) -> list[Shard]:
    """The export's weight files: the source's without what leaves, or cut anew.

    Args:
        index: the source.
        edits: every tensor that stays.
        shard_bytes: most bytes of data in a file, which only a larger tensor exceeds; None: the
            source's files, without those that would be empty.

    Raises:
        CheckpointError: no tensor stays.
    """
    order = {name: position for position, name in enumerate(index.entries)}
    ordered = sorted(edits, key=lambda edit: order[edit.source])
    if not ordered:
        raise CheckpointError(f"{index.path}: no tensor would stay. Check the plan.")
    if shard_bytes is not None:
        groups = list(_filled(ordered, shard_bytes))
        count = len(groups)
        names = [f"model-{n:05d}-of-{count:05d}.safetensors" for n in range(1, count + 1)]
        names = [SINGLE_FILE] if count == 1 else names
        metadata: dict[str, str] = {}
        for file in reversed(index.files):  # where files say different things, the first holds
            metadata |= index.metadata[file]
        return [_shard(*pair, metadata) for pair in zip(names, groups, strict=True)]
    by_file: dict[str, list[TensorEdit]] = {}
    for edit in ordered:
        by_file.setdefault(index.entries[edit.source].file, []).append(edit)
    sources = [file for file in index.files if file in by_file]
    return [
        _shard(name, by_file[source], index.metadata[source])
        for name, source in zip(_shard_names(sources, index.files), sources, strict=True)
    ]


def index_file_for(index: CheckpointIndex, shards: Sequence[Shard]) -> str | None:
    """Name of the export's index, or None where a single file needs none.

    A source that has an index beside its single file keeps it.
    """
    if [shard.name for shard in shards] == [SINGLE_FILE] and index.files != (SINGLE_FILE,):
        return None
    return index.index_file or (INDEX_FILE if len(shards) > 1 else None)


def index_json(index: CheckpointIndex, shards: Sequence[Shard]) -> str:
    """The text of the export's index."""
    metadata = dict(index.index_metadata)
    metadata["total_size"] = sum(shard.data_bytes for shard in shards)
    if "total_parameters" in metadata:
        metadata["total_parameters"] = _remaining_parameters(index, shards)
    weight_map = {edit.target: shard.name for shard in shards for edit in shard.edits}
    body = {"metadata": metadata, "weight_map": dict(sorted(weight_map.items()))}
    return json.dumps(body, indent=2) + "\n"


def _shard(name: str, edits: Sequence[TensorEdit], metadata: dict[str, str]) -> Shard:
    size = sum(edit.info.nbytes for edit in edits)
    return Shard(name=name, edits=tuple(edits), header=_header(edits, metadata), data_bytes=size)


def _filled(edits: Sequence[TensorEdit], shard_bytes: int) -> Iterator[list[TensorEdit]]:
    """Runs of tensors that fit one file each."""
    group: list[TensorEdit] = []
    size = 0
    for edit in edits:
        # What is made together is written together.
        if edit.making is None:
            more = edit.info.nbytes
        else:
            more = sum(edit.making.sizes) if edit.part == 0 else 0
        if group and more and size + more > shard_bytes:
            yield group
            group, size = [], 0
        group.append(edit)
        size += more
    yield group


def _shard_names(kept: list[str], every: Sequence[str]) -> list[str]:
    """Names of the shards that stay; where some left, ``-XXXXX-of-XXXXX`` is counted anew."""
    matches = [_NUMBERED.fullmatch(name) for name in kept]
    parts = [match.groups() for match in matches if match]
    same_series = len({(part[0], part[2:]) for part in parts}) == 1
    if len(kept) == len(every) or len(parts) < len(kept) or not same_series:
        return kept
    return [
        f"{stem}{number:0{len(digits)}d}{of}{len(kept):0{len(total)}d}{suffix}"
        for number, (stem, digits, of, total, suffix) in enumerate(parts, start=1)
    ]


def _header(edits: Sequence[TensorEdit], metadata: dict[str, str]) -> bytes:
    table: dict[str, object] = {"__metadata__": metadata} if metadata else {}
    position = 0
    for edit in edits:
        end = position + edit.info.nbytes
        table[edit.target] = {
            "dtype": edit.info.dtype,
            "shape": list(edit.info.shape),
            "data_offsets": [position, end],
        }
        position = end
    text = json.dumps(table, separators=(",", ":")).encode("ascii")
    text += b" " * (-len(text) % _ALIGNMENT)
    return len(text).to_bytes(8, "little") + text


def _remaining_parameters(index: CheckpointIndex, shards: Sequence[Shard]) -> object:
    """The source's own figure, less what left.

    transformers counts parameters without buffers, so its figure may differ a little from the
    values stored; a packed checkpoint states about twice what it stores, so there the share counts.
    """
    stated = index.index_metadata["total_parameters"]
    if type(stated) is not int:
        return stated
    before = sum(prod(info.shape) for info in index.tensors.values())
    after = sum(_values(edit) for shard in shards for edit in shard.edits)
    if abs(stated - before) * 100 <= before:
        return stated - (before - after)
    return stated * after // before


def _values(edit: TensorEdit) -> int:
    """Values that a tensor stands for; the first of those that are made together, for all."""
    if edit.making is None:
        return prod(edit.info.shape)
    return edit.making.values if edit.part == 0 else 0
