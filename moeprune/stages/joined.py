"""A job in several processes of one launch: they join before it, and end together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Concatenate, ParamSpec, TypeVar

from moeprune.errors import StoppedError
from moeprune.observe.processes import Processes

Words = ParamSpec("Words")
Made = TypeVar("Made")


def together(
    job: Callable[Concatenate[Processes, Words], Made],
) -> Callable[Words, Made]:
    """Give a job the processes of its launch; what fails in one of them ends it in all."""

    @functools.wraps(job)
    def joined(*args: Words.args, **words: Words.kwargs) -> Made:
        with Processes(gpu=words.get("expert_parallel", 1) != 1) as crew:
            try:
                return job(crew, *args, **words)
            except StoppedError as stopped:
                if crew.launch.world == 1:
                    raise
                raise StoppedError(
                    f"stopped; what the {crew.launch.world} processes have measured is kept beside "
                    "the output, if one was named: the same launch goes on from there."
                ) from stopped

    own = inspect.signature(job)
    shown = own.replace(parameters=list(own.parameters.values())[1:])
    del joined.__wrapped__  # its signature has the processes
    joined.__signature__ = shown  # type: ignore[attr-defined]
    return joined
