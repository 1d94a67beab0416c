"""A Hub model that is not downloaded: its headers and routers here, its weight files one by one."""

from __future__ import annotations

import contextlib
import os
import shutil
import tempfile
from collections.abc import Iterator, Mapping
from pathlib import Path

from moeprune.checkpoint.index import OTHER_WEIGHTS, CheckpointIndex, weight_files
from moeprune.checkpoint.outline import Outlines, each
from moeprune.checkpoint.staging import check_output, claimed_folder
from moeprune.errors import CheckpointError, HubError, MoePruneError, UsageError
from moeprune.hub.remote import FileState, RemoteModel
from moeprune.hub.resolve import local_folder

_OUTLINE = "source"  # in the working folder: everything but the weights, and their headers
_WHOLE = "whole"  # beside it: the weight file that is being cut


class StreamedModel:
    """A Hub model by its headers, in a working folder; weight files come when they are asked for.

    It is what :class:`~moeprune.checkpoint.sources.PassingFiles` asks for. Files that lie whole in
    the Hub's cache are read there and never removed.

    Args:
        repo_id: ``org/name``.
        revision: branch, tag or commit.
        work: an empty folder, this object's own.
    """

    def __init__(self, repo_id: str, *, revision: str | None, work: Path) -> None:
        self._repo_id = repo_id
        self._revision = revision
        self._work = work
        self.folder = work / _OUTLINE
        self._outlines = Outlines(self.folder, self._read)
        self._states: dict[str, FileState] = {}
        self._found: RemoteModel | None = None

    def find(self) -> RemoteModel:
        """The model at the commit that everything is asked of; looked up once.

        Raises:
            HubError: the Hub refused, or could not be reached.
        """
        if self._found is None:
            self._found = RemoteModel.find(self._repo_id, revision=self._revision)
        return self._found

    def open(self) -> CheckpointIndex:
        """Fix the commit, then bring the small files and all headers into the folder.

        Raises:
            CheckpointError: they are no sound checkpoint.
            HubError: the Hub refused.
        """
        remote = self.find()
        other = [name for name in remote.files if name.endswith(OTHER_WEIGHTS)]
        if other and not remote.weights:
            raise CheckpointError(
                f"{self._repo_id} has weights only as {other[0]}; moeprune reads safetensors. Look "
                "for a revision that has them (--revision refs/pr/N), or convert it: load the "
                "model with transformers and save_pretrained it."
            )
        self.folder.mkdir()
        for name in remote.weights:  # the export's record lists those that are left out
            (self.folder / name).parent.mkdir(parents=True, exist_ok=True)
            (self.folder / name).touch()
        remote.download_others(self.folder)
        files = [name for name in weight_files(self.folder) if name in remote.weights]
        each([lambda file=file: self._outline(file) for file in files])  # type: ignore[misc]
        return CheckpointIndex.open(self.folder)

    def fill(self, index: CheckpointIndex, names: list[str]) -> None:
        """Bring the data of some tensors into the folder."""
        self._outlines.fill(index, names)

    @property
    def sizes(self) -> Mapping[str, int]:
        """Weight file -> bytes, of those that must be downloaded to be read whole."""
        return {file: state.size for file, state in self._states.items()}

    def fetch(self, file: str) -> Path:
        """Download a weight file; returns where it lies.

        Raises:
            HubError: the Hub refused, or the file is not the one whose header was read.
        """
        if file not in self._states:
            return self.folder / file  # a link to the Hub's cache
        remote = self.find()
        if remote.state(file) != self._states[file]:
            raise remote.changed(file)
        whole = remote.download(file, self._work / _WHOLE)
        if not self._outlines.agrees(file, whole):
            raise remote.changed(file)
        return whole

    def drop(self, file: str) -> None:
        """Remove a downloaded weight file."""
        shutil.rmtree(self._work / _WHOLE, ignore_errors=True)

    def _outline(self, file: str) -> None:
        cached = self.find().cached(file)
        if cached is not None:
            (self.folder / file).unlink()
            (self.folder / file).symlink_to(cached.resolve())
            return
        state = self._states[file] = self.find().state(file)
        self._outlines.add(file, size=state.size)

    def _read(self, file: str, start: int, end: int) -> bytes:
        return self.find().read(file, start, end, size=self._states[file].size)


@contextlib.contextmanager
def streamed(
    model: str | Path, *, revision: str | None, output: Path, write: bool
) -> Iterator[StreamedModel]:
    """The source of an export whose weight files are downloaded one by one, then removed.

    What is downloaded lies in ``<output>.partial``, or, where nothing will be written, in the
    system's folder for temporary files; it is removed at the end of the block, and what a killed
    run left by the next one. Nothing is asked of the Hub before the model is opened.

    Args:
        model: a Hub id.
        revision: branch, tag or commit.
        output: the folder that the export will make.
        write: False for a preview.

    Raises:
        UsageError: ``model`` is a local folder.
        CheckpointError: it is neither that nor a Hub id.
        OutputError: ``output`` cannot be made.
    """
    if local_folder(model) is not None:
        raise UsageError(
            f"--stream is for models on the Hub, and {model} is a local folder. Leave it out."
        )
    check_output(output, source=None)
    with claimed_folder(output) if write else _temporary_folder(str(model)) as work:
        source = StreamedModel(str(model), revision=revision, work=work)
        with _called(source.folder, str(model)):
            yield source


@contextlib.contextmanager
def outlined(
    model: str | Path, *, revision: str | None, beside: Path | None = None
) -> Iterator[StreamedModel | None]:
    """A Hub model by its headers alone; None for a local folder, and where the Hub does not answer.

    In the second case the Hub's cache may hold the model.

    Args:
        model: a folder or a Hub id.
        revision: branch, tag or commit.
        beside: a folder on a disk that has room for weight files, one by one: they lie in
            ``<beside>.partial`` meanwhile. None: no weight file will be asked for.

    Raises:
        CheckpointError: ``model`` is neither a folder nor a Hub id.
        OutputError: the disk of ``beside`` is full.
    """
    if local_folder(model) is not None:
        yield None
        return
    there = beside is not None and os.access(beside.resolve().parent, os.W_OK)
    with (
        claimed_folder(beside.resolve())
        if beside is not None and there
        else _temporary_folder(str(model))
    ) as work:
        source = StreamedModel(str(model), revision=revision, work=work)
        try:
            source.find()
            answers = True
        except HubError:
            answers = False
        with _called(source.folder, str(model)):
            yield source if answers else None


@contextlib.contextmanager
def _temporary_folder(model: str) -> Iterator[Path]:
    try:
        with tempfile.TemporaryDirectory(prefix="moeprune-") as folder:
            yield Path(folder)
    except OSError as problem:
        raise CheckpointError(
            f"the headers of {model} cannot be kept in {tempfile.gettempdir()}: "
            f"{problem.strerror or problem}. Free space there, or set TMPDIR."
        ) from problem


@contextlib.contextmanager
def _called(folder: Path, repo_id: str) -> Iterator[None]:
    """In messages, name the model instead of a folder that nobody will find any more."""
    try:
        yield
    except MoePruneError as problem:
        text = str(problem)
        if str(folder) not in text:
            raise
        named = type(problem)(text.replace(str(folder), repo_id))
        raise named from None
