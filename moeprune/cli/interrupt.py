"""Ctrl-C and SIGTERM on a long job: what runs is finished and kept, and then the job ends."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

_SIGNALS = (signal.SIGINT, signal.SIGTERM)


@contextmanager
def finishing(*, aloud: bool = True) -> Iterator[Callable[[], bool]]:
    """A function that tells whether the job was asked to stop; a second signal ends it at once.

    Outside of the main thread, where no signal can be received, it never is.

    Args:
        aloud: say that a signal was received.
    """
    asked = False

    def ask(number: int, _frame: object) -> None:
        nonlocal asked
        if asked:
            for each, handler in former.items():
                signal.signal(each, handler)
            raise KeyboardInterrupt
        asked = True
        if aloud:
            click.echo(
                "\nstopping, with what is measured kept; a second signal stops at once", err=True
            )

    if threading.current_thread() is not threading.main_thread():
        yield lambda: False
        return
    # Who started it with a signal ignored, as shells do for Ctrl-C and jobs in the background of a
    # script, wants it to go on. None: a handler that is not Python's, which could not be put back.
    heard = [each for each in _SIGNALS if signal.getsignal(each) not in (signal.SIG_IGN, None)]
    former = {each: signal.signal(each, ask) for each in heard}
    try:
        yield lambda: asked
    finally:
        for each, handler in former.items():
            signal.signal(each, handler)
