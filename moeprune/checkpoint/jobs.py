"""The files of an export are jobs: a few at once, or one after another, and what they report."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait

from moeprune.core.progress import OnProgress, Progress

# While the disk flushes one file, the next is read: measured by tests/bench/bench_export.py.
_AT_ONCE = 2
_REPORT_SECONDS = 0.1


class Tally:
    """Bytes written by all threads; reported by one."""

    def __init__(self, total: int, on_progress: OnProgress, *, in_turn: bool) -> None:
        self._total = total
        self._on_progress = on_progress
        self._in_turn = in_turn  # nobody else is there to report
        self._reported = time.monotonic()
        self._lock = threading.Lock()
        self._done = 0
        self.stopped = False

    def add(self, count: int) -> None:
        """Count bytes; a job that must end is ended here."""
        with self._lock:
            self._done += count
            if self.stopped:
                raise InterruptedError("another file could not be written")
        if self._in_turn and time.monotonic() - self._reported >= _REPORT_SECONDS:
            self.report()

    def report(self) -> None:
        """Tell the caller."""
        self._reported = time.monotonic()
        self._on_progress(Progress("export", self._done, self._total, "bytes"))


def run(jobs: Sequence[Callable[[], None]], tally: Tally) -> None:
    """Run the jobs in order, a few at once; the first failure ends them all and is raised."""
    with ThreadPoolExecutor(_AT_ONCE, thread_name_prefix="export") as pool:
        futures = [pool.submit(job) for job in jobs]
        try:
            left = set(futures)
            while left:
                done, left = wait(left, timeout=_REPORT_SECONDS, return_when=FIRST_EXCEPTION)
                for future in done:
                    future.result()
                tally.report()
        except BaseException:
            tally.stopped = True
            pool.shutdown(wait=True, cancel_futures=True)
            raise


def run_in_turn(jobs: Sequence[Callable[[], None]], tally: Tally) -> None:
    """Run the jobs one by one in the caller's thread, where an interrupt ends a long download."""
    for job in jobs:
        job()
        tally.report()
