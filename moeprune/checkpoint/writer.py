"""Write a checkpoint folder from a list of edits: byte ranges, a few shards at once."""

from __future__ import annotations

import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import BinaryIO

from moeprune.checkpoint.copying import Copier, OnBytes
from moeprune.checkpoint.edits import TensorEdit, row_runs
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.jobs import Tally, run, run_in_turn
from moeprune.checkpoint.made import MadeAhead, makers
from moeprune.checkpoint.padding import write_padded
from moeprune.checkpoint.readahead import ReadAhead
from moeprune.checkpoint.scaling import write_scaled
from moeprune.checkpoint.shards import Shard, index_file_for, index_json, shards_for
from moeprune.checkpoint.sidecars import sidecars_of
from moeprune.checkpoint.sources import Lender, PassingFiles, passing_sizes
from moeprune.checkpoint.staging import check_output, staged_folder
from moeprune.checkpoint.tables import write_table
from moeprune.core.progress import OnProgress, ignore
from moeprune.errors import CheckpointError


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """All files of an export, known to the byte before one is written, but for late texts.

    Attributes:
        shards: the weight files.
        texts: name -> bytes of the files written anew, the index among them.
        copied: name -> size of the source's other files that go along.
        late: gives the texts that tell what came of the weights, name -> text, once all of them
            are written; they replace those of ``texts``. None: there are none.
    """

    shards: tuple[Shard, ...]
    texts: Mapping[str, bytes]
    copied: Mapping[str, int]
    late: Callable[[], Mapping[str, str]] | None = None

    @property
    def sizes(self) -> dict[str, int]:
        """Name -> bytes, of every file."""
        sizes = {shard.name: len(shard.header) + shard.data_bytes for shard in self.shards}
        return sizes | dict(self.copied) | {name: len(data) for name, data in self.texts.items()}

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.sizes.values())


def contents_of(
    index: CheckpointIndex,
    edits: Sequence[TensorEdit],
    *,
    texts: Mapping[str, str],
    shard_bytes: int | None = None,
    late: Callable[[], Mapping[str, str]] | None = None,
    without: Collection[str] = (),
) -> Contents:
    """What :func:`write_checkpoint` would write.

    Args:
        index: the source.
        edits: what stays, from :func:`moeprune.checkpoint.edits.edits_for`.
        texts: files written anew (config.json, the model card ...): name -> text; they replace
            the source's.
        shard_bytes: see :func:`moeprune.checkpoint.shards.shards_for`.
        late: gives texts that are known when the weights are written; each of them replaces one of
            ``texts``.
        without: names of the source's other files that do not go along.

    Raises:
        CheckpointError: the source's folder cannot be read, or no tensor stays.
    """
    shards = tuple(shards_for(index, edits, shard_bytes=shard_bytes))
    written = {name: text.encode("utf-8") for name, text in texts.items()}
    index_file = index_file_for(index, shards)
    if index_file is not None:
        written[index_file] = index_json(index, shards).encode("utf-8")
    copied = {}
    for name in sidecars_of(index, replaced=(*written, *without)).copied:
        with _opened(index.path / name) as file:
            copied[name] = os.fstat(file.fileno()).st_size
    return Contents(shards=shards, texts=written, copied=copied, late=late)


def write_checkpoint(
    index: CheckpointIndex,
    contents: Contents,
    output: Path,
    *,
    passing: PassingFiles | None = None,
    on_progress: OnProgress = ignore,
) -> Path:
    """Write the edited checkpoint to the new folder ``output``, complete or not at all.

    Tensors are copied as byte ranges in the order of the source's disk; memory use does not
    depend on their size. All other files of the source go along byte for byte, except weights in
    another form.

    Args:
        index: the source.
        contents: from :func:`contents_of`.
        output: the folder to make.
        passing: where the source's weight files come from, if they are not all in its folder,
            which then lies in the :func:`~moeprune.checkpoint.staging.claimed_folder` of
            ``output``. At most one of them is here at a time.
        on_progress: told of the bytes written (and fetched), in the caller's thread.

    Raises:
        OutputError: ``output`` exists, lies in the source, or the disk is full.
        CheckpointError: the source cannot be read.
    """
    check_output(output, source=None if passing else index.path)
    fetched = passing_sizes(index, contents.shards, passing)
    needed = contents.total_bytes + max(fetched.values(), default=0)
    with ExitStack() as opened:
        folder = opened.enter_context(
            staged_folder(output, needed=needed, claimed=passing is not None)
        )
        total = contents.total_bytes + sum(fetched.values())
        tally = Tally(total, on_progress, in_turn=passing is not None)
        lender = Lender(index, contents.shards, passing, tally.add)
        executor = opened.enter_context(makers(e for s in contents.shards for e in s.edits))
        for name in {*contents.copied, *contents.texts}:
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
        jobs: list[Callable[[], None]] = [
            partial(_write_shard, index, shard, folder / shard.name, tally.add, lender, executor)
            for shard in contents.shards
        ]
        jobs += [
            partial(_write_copy, index.path / name, folder / name, tally.add)
            for name in contents.copied
        ]
        jobs += [
            partial(_write_text, contents.texts[name], folder / name, tally.add)
            for name in contents.texts
        ]
        if passing is None:
            run(jobs, tally)
        else:
            run_in_turn(jobs, tally)
        for name, text in (contents.late() if contents.late else {}).items():
            (folder / name).unlink()
            _write_text(text.encode("utf-8"), folder / name, lambda _: None)  # counted already
    return output


def _write_shard(
    index: CheckpointIndex,
    shard: Shard,
    path: Path,
    report: OnBytes,
    lender: Lender,
    executor: Executor | None,
) -> None:
    with path.open("xb", buffering=0) as target:
        copier = Copier(target, report)
        copier.write(shard.header)
        report(len(shard.header))
        by_file: list[tuple[str, list[TensorEdit]]] = []
        for edit in shard.edits:
            file = index.entries[edit.source].file
            if not by_file or by_file[-1][0] != file:
                by_file.append((file, []))
            by_file[-1][1].append(edit)
        for file, edits in by_file:
            with lender.lend(file) as source_path, _opened(source_path) as source:
                _copy_tensors(index, edits, source, copier, executor)
        os.fsync(target.fileno())


def _copy_tensors(
    index: CheckpointIndex,
    edits: Sequence[TensorEdit],
    source: BinaryIO,
    copier: Copier,
    executor: Executor | None,
) -> None:
    copier.on_read = ReadAhead(source, _ranges(index, edits)).reached
    with MadeAhead(edits, index, source, copier.on_read, executor) as made:
        # Tensors that follow one another on disk and stay whole move as one range.
        start = end = 0
        for edit in edits:
            entry = index.entries[edit.source]
            if edit.whole and entry.start == end:
                end = entry.end
                continue
            copier.copy(source, start, end)
            start = end = entry.start
            if edit.making is not None:
                if edit.part == 0:
                    for part in made.take(edit):
                        copier.write_new(part)
            elif edit.table is not None:
                write_table(copier, source, entry, edit.table)
            elif edit.factor != 1.0:
                write_scaled(copier, source, entry, edit)
            elif edit.ids is None:
                end = entry.end
            elif edit.pad:
                write_padded(copier, source, entry, edit)
            else:
                copier.copy_rows(source, entry.start, row_runs(edit, entry.info))
        copier.copy(source, start, end)


def _ranges(index: CheckpointIndex, edits: Sequence[TensorEdit]) -> Iterator[tuple[int, int]]:
    """What is read of a source file, in order."""
    for edit in edits:
        entry = index.entries[edit.source]
        if edit.making is not None:
            if edit.part == 0:
                piece = edit.making.pieces[0]
                yield entry.start + piece.start, entry.start + piece.end
            continue
        rows = row_runs(edit, entry.info)
        if rows.rows == 1:
            yield from ((entry.start + start, entry.start + end) for start, end in rows)
        else:
            yield entry.start, entry.end


def _write_copy(source_path: Path, path: Path, report: OnBytes) -> None:
    with _opened(source_path) as source, path.open("xb", buffering=0) as target:
        Copier(target, report).copy(source, 0, os.fstat(source.fileno()).st_size)
        os.fsync(target.fileno())


def _write_text(data: bytes, path: Path, report: OnBytes) -> None:
    with path.open("xb", buffering=0) as target:
        Copier(target, report).write(data)
        os.fsync(target.fileno())
    report(len(data))


def _opened(path: Path) -> BinaryIO:
    try:
        return path.open("rb", buffering=0)
    except OSError as problem:
        raise CheckpointError(f"{path} cannot be read: {problem.strerror or problem}.") from problem
