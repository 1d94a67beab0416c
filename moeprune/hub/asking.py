"""One request to the Hub, repeated where it fails in passing, and its failure in one line."""

from __future__ import annotations

import errno
import time
from collections.abc import Callable
from typing import TypeVar

from moeprune.errors import HubError
from moeprune.hub.problems import (
    bars_on_terminals_only,
    client_errors,
    explain,
    is_answer,
    is_passing,
)

WAITS = (1, 2, 4, 8)  # seconds before what failed in passing is asked again
LONG_WAITS = (1, 4, 10, 20)  # where giving up loses what was done before
_NO_SPACE = (errno.ENOSPC, errno.EDQUOT)

Result = TypeVar("Result")


def asked(
    call: Callable[[], Result],
    repo_id: str,
    *,
    revision: str | None,
    file: str | None = None,
    waits: tuple[int, ...] = (),
    answered: bool = False,
) -> Result:
    """The result of ``call()``.

    Args:
        call: asks the Hub.
        repo_id: of what.
        revision: of it.
        file: of it.
        waits: seconds before each repetition of what failed in passing.
        answered: repeat only where the Hub was reached.

    Raises:
        HubError: it failed, and for the last time.
        OSError: the disk is full.
    """
    for wait in (*waits, None):
        try:
            with bars_on_terminals_only():
                return call()
        except client_errors() as error:
            if isinstance(error, OSError) and error.errno in _NO_SPACE:
                raise
            message = explain(error, repo_id=repo_id, revision=revision, file=file)
            if wait is None or not is_passing(error) or (answered and not is_answer(error)):
                break
        time.sleep(wait)
    raise HubError(message)  # outside the except block: see moeprune.hub.problems
