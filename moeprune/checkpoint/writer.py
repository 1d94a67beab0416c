"""Write a checkpoint folder from a list of edits: byte ranges, one shard after the other."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from moeprune.checkpoint.copying import Copier, OnBytes
from moeprune.checkpoint.edits import TensorEdit, row_runs
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.shards import Shard, index_json, shards_for
from moeprune.checkpoint.sidecars import sidecars_of
from moeprune.checkpoint.staging import check_output, staged_folder
from moeprune.core.progress import OnProgress, Progress, ignore
from moeprune.errors import CheckpointError


def write_checkpoint(
    index: CheckpointIndex,
    edits: Sequence[TensorEdit],
    output: Path,
    *,
    texts: Mapping[str, str],
    on_progress: OnProgress = ignore,
) -> Path:
    """Write the edited checkpoint to the new folder ``output``, complete or not at all.

    Tensors are copied as byte ranges in the order of the source's disk; memory use does not
    depend on their size. All other files of the source go along byte for byte, except weights in
    another form.

    Args:
        index: the source.
        edits: what stays, from :func:`moeprune.checkpoint.edits.edits_for`.
        output: the folder to make.
        texts: files written anew (config.json, the model card ...): name -> text; they replace
            the source's.
        on_progress: told of the bytes written.

    Raises:
        OutputError: ``output`` exists, lies in the source, or the disk is full.
        CheckpointError: the source cannot be read.
    """
    check_output(output, source=index.path)
    shards = shards_for(index, edits)
    written = {name: text.encode("utf-8") for name, text in texts.items()}
    index_text = index_json(index, shards)
    if index.index_file is not None and index_text is not None:
        written[index.index_file] = index_text.encode("utf-8")
    copied = sidecars_of(index, replaced=written).copied
    total = sum(len(shard.header) + shard.data_bytes for shard in shards)
    total += sum(map(len, written.values()))
    total += sum((index.path / name).stat().st_size for name in copied)
    done = 0

    def report(count: int) -> None:
        nonlocal done
        done += count
        on_progress(Progress("export", done, total, "bytes"))

    with staged_folder(output, needed=total) as folder:
        for shard in shards:
            _write_shard(index, shard, folder / shard.name, report)
        for name in copied:
            _write_copy(index.path / name, folder / name, report)
        for name, data in written.items():
            with (folder / name).open("xb", buffering=0) as target:
                Copier(target, report).write(data)
                os.fsync(target.fileno())
            report(len(data))
    return output


def _write_shard(index: CheckpointIndex, shard: Shard, path: Path, report: OnBytes) -> None:
    with _opened(index.path / shard.source) as source, path.open("xb", buffering=0) as target:
        copier = Copier(target, report)
        copier.write(shard.header)
        report(len(shard.header))
        # Tensors that follow one another on disk and stay whole move as one range.
        start = end = 0
        for edit in shard.edits:
            entry = index.entries[edit.source]
            if edit.ids is None and entry.start == end:
                end = entry.end
                continue
            copier.copy(source, start, end)
            start = end = entry.start
            if edit.ids is None:
                end = entry.end
            else:
                copier.copy_rows(source, entry.start, row_runs(edit, entry.info))
        copier.copy(source, start, end)
        os.fsync(target.fileno())


def _write_copy(source_path: Path, path: Path, report: OnBytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    with _opened(source_path) as source, path.open("xb", buffering=0) as target:
        Copier(target, report).copy(source, 0, os.fstat(source.fileno()).st_size)
        os.fsync(target.fileno())


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror or problem}.") from problem
