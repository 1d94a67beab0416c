"""A job in several processes of one launch: they join before it, and end together."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Concatenate, ParamSpec, TypeVar

from moeprune.errors import StoppedError
from moeprune.observe.processes import Processes
from moeprune.stages.claim import claimed, progress_file
from moeprune.stages.decode_words import generations_file, written_file
from moeprune.stages.together import Work

Words = ParamSpec("Words")
Made = TypeVar("Made")


def together(
    job: Callable[Concatenate[Processes, Words], Made],
) -> Callable[Words, Made]:
    """Give a calibration the processes of its launch; what fails in one ends it in all."""
    return joint(job, alone=_alone)


def joint(
    job: Callable[Concatenate[Processes, Words], Made],
    *,
    alone: Callable[[Processes, Mapping[str, object]], AbstractContextManager[None]],
) -> Callable[Words, Made]:
    """Give a job the processes of its launch; what fails in one of them ends it in all.

    Args:
        job: takes the processes before everything else.
        alone: of the processes and the job's words, a block in which no other launch writes the
            same output.
    """

    @functools.wraps(job)
    def joined(*args: Words.args, **words: Words.kwargs) -> Made:
        with (
            Processes(gpu=words.get("expert_parallel", 1) != 1) as crew,
            alone(crew, words),
        ):
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


def _alone(crew: Processes, words: Mapping[str, object]) -> AbstractContextManager[None]:
    """No other launch may write the same file meanwhile."""
    output = words.get("output")
    if not isinstance(output, str | Path):
        return nullcontext()
    work, path = Work(crew, expert_parallel=1), Path(output)
    own = [work.own_file(file(path)) for file in (progress_file, written_file)]
    if work.speaks:
        own += [path, generations_file(path)]
    return claimed(path, *own)
