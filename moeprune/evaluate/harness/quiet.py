"""lm-eval sets seeds, talks on stdout and draws bars on stderr: none of it leaves the block."""

from __future__ import annotations

import contextlib
import io
import logging
import os
import random
from collections.abc import Callable, Iterator
from typing import TextIO

import numpy as np

_LOG = logging.getLogger(__name__)
_LIBRARY = "lm_eval"


class _Lines(io.TextIOBase):
    """A stream whose lines are handed on, each when it is whole."""

    def __init__(self, hand_on: Callable[[str], None]) -> None:
        self._hand_on = hand_on
        self._begun = ""

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        *lines, self._begun = (self._begun + text).split("\n")
        for line in lines:
            if line.strip():
                self._hand_on(line)
        return len(text)


class _WithoutBars(io.TextIOBase):
    """A stream that passes on all but what begins with a carriage return, as bars do."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream
        self._in_bar = False

    def writable(self) -> bool:
        return True

    def write(self, text: str) -> int:
        if text.startswith("\r") or (self._in_bar and text == "\n"):
            self._in_bar = text != "\n"
        else:
            self._in_bar = False
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        self._stream.flush()


class _HandOn(logging.Handler):
    """Its errors are errors; the rest is for who looks at our own log."""

    def emit(self, record: logging.LogRecord) -> None:
        level = record.levelno if record.levelno >= logging.ERROR else logging.DEBUG
        _LOG.log(level, "lm-eval: %s", record.getMessage())


class Streams:
    """The streams as they were before the block."""

    def __init__(self, stdout: TextIO, stderr: TextIO) -> None:
        self._stdout, self._stderr = stdout, stderr

    @contextlib.contextmanager
    def own(self) -> Iterator[None]:
        """Within the block, they are the streams again: for who reports progress."""
        with contextlib.redirect_stdout(self._stdout), contextlib.redirect_stderr(self._stderr):
            yield


@contextlib.contextmanager
def contained() -> Iterator[Streams]:
    """Within the block, lm-eval may do as it does; nothing of it is seen, and nothing stays.

    What it prints on stdout and logs goes to the log of this module; what else it writes on stderr
    stays there, without bars. Random states, the environment and log settings are restored.
    """
    import sys

    import torch

    environment = dict(os.environ)
    states = random.getstate(), np.random.get_state()
    on_gpu = torch.cuda.is_available() and torch.cuda.is_initialized()
    devices = list(range(torch.cuda.device_count())) if on_gpu else []
    streams = Streams(sys.stdout, sys.stderr)
    stdout = _Lines(lambda line: _LOG.info("lm-eval: %s", line))
    try:
        with (
            torch.random.fork_rng(devices=devices),
            contextlib.redirect_stdout(stdout),
            contextlib.redirect_stderr(_WithoutBars(streams._stderr)),
            _logs_handed_on(),
            _quiet_libraries(),
        ):
            yield streams
    finally:
        random.setstate(states[0])
        np.random.set_state(states[1])
        for name in set(os.environ) - set(environment):
            del os.environ[name]
        os.environ.update(environment)


def seeded(seed: int) -> None:
    """Seed everything as ``lm_eval.simple_evaluate`` does; inside :func:`contained`.

    Python's own generator always gets lm-eval's default: tasks shuffle by it while they are read
    (the choices of GPQA), and their questions must be those that everybody is asked.
    """
    import torch

    random.seed(0)
    np.random.seed(seed)
    torch.manual_seed(seed)


@contextlib.contextmanager
def _logs_handed_on() -> Iterator[None]:
    logger, handler = logging.getLogger(_LIBRARY), _HandOn()
    level, propagate, handlers = logger.level, logger.propagate, list(logger.handlers)
    logger.handlers, logger.propagate = [handler], False
    logger.setLevel(logging.INFO)
    try:
        yield
    finally:
        logger.handlers, logger.propagate = handlers, propagate
        logger.setLevel(level)


@contextlib.contextmanager
def _quiet_libraries() -> Iterator[None]:
    """No bars of datasets; of transformers, no word on inputs that are taken in windows."""
    import datasets
    from transformers.utils import logging as transformers_logging

    shown = not datasets.are_progress_bars_disabled()
    level = transformers_logging.get_verbosity()
    datasets.disable_progress_bars()
    transformers_logging.set_verbosity_error()
    try:
        yield
    finally:
        transformers_logging.set_verbosity(level)
        if shown:
            datasets.enable_progress_bars()
