"""The processes of one launch: they wait for each other, add up what they have, and end together.

They meet in the store that the launcher keeps, not in collective calls: who waits in a store can
look whether somebody failed, who waits in a collective call hangs. Numbers go through gloo, once
all are known to be there; what is added up lies in the memory of CPUs in any case.
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Mapping
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np
from numpy.typing import NDArray

from moeprune.errors import ElsewhereError, MismatchError, StoppedError
from moeprune.observe.joining import join, reached
from moeprune.observe.launch import Launch, launched

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

Found = TypeVar("Found")
Array = NDArray[Any]

_LOOK = 0.05  # seconds between looks into the store
_SHARE = 0.01  # of the time waited so far, what the next look may be late
_STORE = "the process that keeps the launch together"
_GRACE = 10.0  # seconds that the others get to notice a failure, before launchers end them
_STOP_GRACE = 1.0  # the same where this one was stopped: so are the others, by their launcher


class Processes:
    """All processes of the launch, seen from this one; alone, nothing of it costs anything.

    Use it as a context: what fails inside ends the block in all of them. The first to fail raises
    its error, the others :class:`ElsewhereError`.

    Attributes:
        launch: who this process is.
    """

    def __init__(self, launch: Launch | None = None, *, gpu: bool = False) -> None:
        """Nothing is joined before the context is entered.

        Args:
            launch: who this process is; None: as the environment says.
            gpu: a model will be spread over GPUs, if there are some, and its tensors sent as well.
        """
        self.launch = launched() if launch is None else launch
        self._gpu = gpu
        self._store: Store | None = None
        self._meetings = 0
        self._undo = contextlib.ExitStack()

    def __enter__(self) -> Processes:
        """Join the others.

        Raises:
            UsageError: they do not come.
        """
        if self.launch.world > 1:
            self._store = join(self.launch, gpu=self._gpu, leaving=self._undo)
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        """Leave together."""
        store, self._store = self._store, None
        if store is None:
            return
        with self._undo:
            own = problem is not None and not isinstance(problem, ElsewhereError)
            grace = _STOP_GRACE if isinstance(problem, StoppedError) else _GRACE
            first = self._left(store, failed=own, grace=grace)
        if own and not first:
            raise ElsewhereError from problem

    def poll(self) -> bool:
        """Whether another process has failed, or stopped."""
        if self._store is None:
            return False
        with reached(_STORE):
            return bool(self._store.check(["failed"]))

    def meet(self) -> None:
        """Wait until all are here.

        Raises:
            ElsewhereError: one of them has failed and does not come.
        """
        if self._store is None:
            return
        self._meetings += 1
        here = f"meeting {self._meetings}"
        start, wait = time.monotonic(), _LOOK / 16
        with reached(_STORE):
            self._store.add(here, 1)
            while self._store.add(here, 0) < self.launch.world:
                if self.poll():
                    raise ElsewhereError
                time.sleep(wait)
                # Who has waited for minutes need not look at once: hundreds may be waiting.
                wait = min(2 * wait, max(_LOOK, _SHARE * (time.monotonic() - start)), 1.0)
            if self.launch.rank == 0:  # nobody asks after these any more
                self._store.delete_key(f"meeting {self._meetings - 1}")
                self._store.delete_key(f"wishes {self._meetings - 2}")

    def first_here(self, work: Callable[[], Found]) -> Found:
        """Do something that downloads: on each machine one process first, then the others."""
        if self.launch.local_rank == 0:
            done = work()
            self.meet()
            return done
        self.meet()
        return work()

    def count(self, name: str, more: int) -> int:
        """Add to a number that all share; what it is now."""
        if self._store is None:
            return more
        with reached(_STORE):
            return int(self._store.add(f"count {name}", more))

    def agree(self, wish: bool) -> bool:
        """Whether any process wishes it. All must ask, at the same point of the same work."""
        if self._store is None:
            return wish
        with reached(_STORE):
            wishes = f"wishes {self._meetings}"
            self._store.add(wishes, int(wish))
            self.meet()
            return bool(self._store.add(wishes, 0))

    def check_same(self, what: str, value: str) -> None:
        """Check that all processes have the same value.

        Raises:
            MismatchError: they have not.
        """
        if self._store is None:
            return
        if self.launch.rank == 0:
            self._store.set(f"same {what}", value)
        self.meet()
        differs = self._store.get(f"same {what}").decode() != value
        # All end here, also those that have what process 0 has.
        if self.agree(differs):
            if not differs:
                raise ElsewhereError
            raise MismatchError(
                f"process {self.launch.rank} was not given the same {what} as process 0. Give all "
                "machines the same files and the same command."
            )

    def added(self, arrays: Mapping[str, Array], *, maxima: frozenset[str]) -> dict[str, Array]:
        """Sums over all processes, in each of them; of the names in ``maxima`` the largest."""
        if self._store is None:
            return dict(arrays)
        import torch
        from torch.distributed import ReduceOp, all_reduce

        self.meet()
        found: dict[str, Array] = {}
        for name, array in sorted(arrays.items()):
            values = torch.from_numpy(np.array(array))
            all_reduce(values, op=ReduceOp.MAX if name in maxima else ReduceOp.SUM)
            found[name] = values.numpy()
        return found

    def gathered(self, values: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """The vector of each process, in each of them."""
        if self._store is None:
            return [values]
        import torch
        from torch.distributed import all_gather

        self.meet()
        size = torch.tensor([values.size])
        sizes = [torch.zeros_like(size) for _ in range(self.launch.world)]
        all_gather(sizes, size)
        padded = torch.zeros(max(int(one) for one in sizes), dtype=torch.int64)
        padded[: values.size] = torch.from_numpy(values)
        found = [torch.empty_like(padded) for _ in sizes]
        all_gather(found, padded)
        return [one[: int(size)].numpy() for one, size in zip(found, sizes, strict=True)]

    def _left(self, store: Store, *, failed: bool, grace: float) -> bool:
        """Leave; the first to fail, and the one that may keep the store, see the others off.

        Returns:
            Whether this process was the first to fail.
        """

        def wait(name: str, number: int) -> None:
            end = time.monotonic() + grace
            while store.add(name, 0) < number and time.monotonic() < end:
                time.sleep(_LOOK)

        rank, world = self.launch.rank, self.launch.world
        first = failed  # where nobody can be asked, everybody says what he knows
        with contextlib.suppress(RuntimeError):  # the store is gone
            if failed:
                first = store.compare_set("failed", "", str(rank)).decode() == str(rank)
            store.add("noticed", 1)
            if first:
                wait("noticed", world)
            if rank == 0:
                wait("left", world - 1)
            else:
                store.add("left", 1)
        return first
