"""What a model selected on some texts, kept in a file without a name until another has read them.

P runs of a layer in a pass, S tokens of a text that count, K experts chosen.
"""

from __future__ import annotations

import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from moeprune.errors import OutputError


class KeptSelections:
    """Texts one after the other, rows in order, an id in as few bytes as it takes."""

    def __init__(self, file: IO[bytes], choices: Sequence[int], where: Path) -> None:
        """Nothing is kept yet.

        Args:
            file: open for writing and reading.
            choices: of each row, how many ids there are.
            where: the folder, for messages.
        """
        self._file, self._where = file, where
        self._types = [np.min_scalar_type(count - 1) for count in choices]
        self.shapes: list[tuple[int, int]] = []  # P and K of each row, known once one is written

    def write(self, ids_L: Sequence[NDArray[Any]]) -> None:
        """Add a text: (P, S, K) ids of each row.

        Raises:
            OutputError: the disk is full.
        """
        self.shapes = [(ids_PSK.shape[0], ids_PSK.shape[2]) for ids_PSK in ids_L]
        try:
            for ids_PSK, kind in zip(ids_L, self._types, strict=True):
                assert ids_PSK.max() <= np.iinfo(kind).max, "an id that no expert has"
                self._file.write(np.ascontiguousarray(ids_PSK, kind).tobytes())
            self._file.flush()
        except OSError as problem:
            raise OutputError(
                f"cannot keep what is selected in {self._where}: {problem.strerror or problem}. "
                "Make room there, or read less text (--chunks)."
            ) from problem

    def rewind(self) -> None:
        """Begin to read at the first text."""
        self._file.seek(0)

    def read(self, tokens: int) -> list[NDArray[Any]]:
        """The next text, (P, S, K) ids of each row.

        Args:
            tokens: S of it.
        """
        found = []
        for (passes, ranks), kind in zip(self.shapes, self._types, strict=True):
            size = passes * tokens * ranks
            values = np.frombuffer(self._file.read(size * kind.itemsize), kind)
            found.append(values.reshape(passes, tokens, ranks))
        return found


@contextmanager
def kept_selections(folder: Path | None, choices: Sequence[int]) -> Iterator[KeptSelections]:
    """A file that is gone after the block.

    Args:
        folder: where it lies; None: where temporary files do.
        choices: of each row, how many ids there are.

    Raises:
        OutputError: it cannot be made.
    """
    where = folder or Path(tempfile.gettempdir())
    try:
        file = tempfile.TemporaryFile(dir=where)  # noqa: SIM115
    except OSError as problem:
        raise OutputError(
            f"cannot keep what is selected in {where}: {problem.strerror or problem}."
        ) from problem
    with file:
        yield KeptSelections(file, choices, where)
