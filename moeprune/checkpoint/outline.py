"""Weight files of which only some bytes are here: the header, and tensors that are asked for.

Each is a file of the full size whose unread part is a hole, which takes no room on a disk that
knows holes. So everything that reads headers works on it as on the whole file.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from moeprune.checkpoint.header import LENGTH_BYTES, MAX_HEADER
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.reader import CHUNK_BYTES, chunks
from moeprune.errors import CheckpointError

ReadRange = Callable[[str, int, int], bytes]  # (file, start, end): exactly those bytes

FIRST_BYTES = 128 << 10  # holds most headers: one request instead of two
_GAP = 64 << 10  # ranges this near each other are read as one
_AT_ONCE = 8  # each waits for an answer most of its time


class Outlines:
    """The partly known weight files of one folder.

    Args:
        folder: where they lie.
        read: gives bytes of them; called from several threads.
    """

    def __init__(self, folder: Path, read: ReadRange) -> None:
        self._folder = folder
        self._read = read
        self._known: dict[str, list[tuple[int, int]]] = {}

    def add(self, file: str, *, size: int) -> None:
        """Make the file, ``size`` bytes long, with its header in place.

        A header that cannot be, by its stated length, is left out: reading it then says so.

        Raises:
            CheckpointError: no file can be of that size here.
        """
        first = self._read(file, 0, min(size, FIRST_BYTES)) if size else b""
        length = int.from_bytes(first[:LENGTH_BYTES], "little")
        whole = LENGTH_BYTES + length
        try:
            with (self._folder / file).open("wb") as target:
                target.truncate(size)
                target.write(first)
        except OSError as problem:
            raise CheckpointError(
                f"{self._folder / file} cannot be outlined at {size:,} bytes: "
                f"{problem.strerror or problem}."
            ) from problem
        self._known[file] = [(0, len(first))]
        if len(first) < whole <= size and length <= MAX_HEADER:
            self._fill(file, len(first), whole)

    def fill(self, index: CheckpointIndex, names: Iterable[str]) -> None:
        """Bring in the data of some tensors; what lies whole in the folder is passed over."""
        wanted = [index.entries[name] for name in names]
        ranges = [
            (file, start, end)
            for file in sorted({entry.file for entry in wanted} & self._known.keys())
            for start, end in _merged((e.start, e.end) for e in wanted if e.file == file)
        ]
        each([lambda r=r: self._fill(*r) for r in ranges])  # type: ignore[misc]

    def agrees(self, file: str, whole: Path) -> bool:
        """Whether the file ``whole`` has the same bytes everywhere where they are known."""
        mine = self._folder / file
        if mine.stat().st_size != whole.stat().st_size:
            return False
        return all(
            ours == theirs
            for start, end in self._known[file]
            for ours, theirs in zip(
                chunks(mine, start, end), chunks(whole, start, end), strict=True
            )
        )

    def _fill(self, file: str, start: int, end: int) -> None:
        for at in range(start, end, CHUNK_BYTES):
            data = self._read(file, at, min(end, at + CHUNK_BYTES))
            with (self._folder / file).open("r+b") as target:
                target.seek(at)
                target.write(data)
        self._known[file].append((start, end))


def each(jobs: Collection[Callable[[], None]]) -> None:
    """Run jobs that mostly wait, several at once; the first failure is raised and ends them all."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="outline") as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            for future in futures:
                future.result()
        except BaseException:
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def _merged(ranges: Iterable[tuple[int, int]]) -> list[tuple[int, int]]:
    """The ranges in order, those that nearly touch as one; empty ones left out."""
    found: list[tuple[int, int]] = []
    for start, end in sorted(ranges):
        if start == end:
            continue
        if found and start <= found[-1][1] + _GAP:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((start, end))
    return found
