"""Progress on a terminal: one line on stderr with rate and time left; silent elsewhere."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from moeprune.core.progress import OnProgress, Progress, ignore

_REDRAW_SECONDS = 0.1
_COLUMNS = 80


class _Line:
    """Draws reports over each other; a new stage starts its own clock."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._stage = ""
        self._start = self._drawn = 0.0
        self._first = 0
        self._width = 0

    def __call__(self, report: Progress) -> None:
        now = time.monotonic()
        if report.stage != self._stage:
            self._stage, self._start, self._drawn, self._first = report.stage, now, 0.0, report.done
        last = report.total > 0 and report.done >= report.total
        if now - self._drawn < _REDRAW_SECONDS and not last:
            return
        self._drawn = now
        self._draw(describe(report, seconds=now - self._start, since=self._first))

    def _draw(self, text: str) -> None:
        # A line that is wrapped would scroll instead of being drawn over.
        text = text[: self._columns() - 1]
        self._stream.write("\r" + text.ljust(self._width))
        self._stream.flush()
        self._width = len(text)

    def _columns(self) -> int:
        try:
            return os.get_terminal_size(self._stream.fileno()).columns or _COLUMNS
        except OSError:  # no real terminal, or none that knows its width
            return _COLUMNS

    def clear(self) -> None:
        """Leave the line empty for what comes next."""
        self._draw("")
        self._stream.write("\r")
        self._stream.flush()


def describe(report: Progress, *, seconds: float, since: int = 0) -> str:
    """One line for a report: share done, amount, rate, time left.

    Args:
        report: the report.
        seconds: since the stage began.
        since: units done when it began.
    """
    rate = (report.done - since) / seconds if seconds > 0 else 0.0
    parts = [report.stage]
    if report.total:
        parts.append(f"{report.done / report.total:4.0%}")
    parts.append(_amount(report.done, report.unit))
    if rate > 0:
        slow = report.unit != "bytes" and rate < 10  # a plan a minute is a rate too
        parts.append(f"{rate:.2f} {report.unit}/s" if slow else f"{_amount(rate, report.unit)}/s")
        if report.total:
            parts.append(f"{_clock((report.total - report.done) / rate)} left")
    if report.note:
        parts.append(report.note)
    return "  ".join(parts)


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(max(0.0, seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02d}:{rest:02d}" if hours else f"{minutes}:{rest:02d}"


def _amount(value: float, unit: str) -> str:
    if unit != "bytes":
        return f"{value:,.0f} {unit}"
    for name in ("B", "kB", "MB", "GB"):
        if value < 1000:
            return f"{value:.1f} {name}"
        value /= 1000
    return f"{value:.1f} TB"


@contextmanager
def progress(stream: TextIO | None = None) -> Iterator[OnProgress]:
    """A callback that draws on a terminal and does nothing elsewhere."""
    stream = stream or sys.stderr
    if stream is None or not stream.isatty():  # None: the program was started without a stderr
        yield ignore
        return
    line = _Line(stream)
    try:
        yield line
    finally:
        line.clear()
