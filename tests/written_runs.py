"""Runs written by hand: what was answered, as a text of 1 (right) and 0 (wrong)."""

from collections.abc import Mapping, Sequence
from typing import Any

from moeprune.core.run import Run
from moeprune.core.sample import Sample


def answers(
    task: str,
    right: str,
    *,
    domains: Sequence[str] = (),
    seed: int = 0,
    first: int = 0,
    **values: Any,
) -> list[Sample]:
    """One answer a character; question i is of the domain i modulo their number."""
    return [
        Sample(
            task=task,
            domain=domains[place % len(domains)] if domains else task,
            id=f"{first + place}",
            seed=seed,
            input=f"input of {task} {first + place}",
            metrics={"acc": float(mark)},
            correct=mark == "1",
            prediction="A" if mark == "1" else "B",
            answer="A",
            **{name: value(place) if callable(value) else value for name, value in values.items()},
        )
        for place, mark in enumerate(right)
    ]


def texts(task: str, nll: Sequence[float], *, tokens: int = 10) -> list[Sample]:
    """Windows of a text and what they cost."""
    return [
        Sample(
            task=task,
            domain=task,
            id=str(place),
            input=f"text of {task} {place}",
            details={"nll": value, "tokens": tokens, "bytes": 4 * tokens},
        )
        for place, value in enumerate(nll)
    ]


def run(
    name: str,
    *groups: Sequence[Sample],
    tasks: Mapping[str, Mapping[str, Any]] | None = None,
    **values: Any,
) -> Run:
    """A run of these answers; a task's header says its kind alone, where nothing else is given."""
    samples = tuple(sample for group in groups for sample in group)
    told = tasks or {}
    names = dict.fromkeys(sample.task for sample in samples)
    return Run(
        name=name,
        tasks={task: told.get(task, {"kind": "letters"}) for task in names},
        samples=samples,
        **values,
    )


def flipped(right: str, lost: int, won: int) -> str:
    """The same answers with the first ``lost`` right ones wrong and ``won`` wrong ones right."""
    found = list(right)
    for old, new, count in (("1", "0", lost), ("0", "1", won)):
        places = [place for place, mark in enumerate(right) if mark == old][:count]
        assert len(places) == count
        for place in places:
            found[place] = new
    return "".join(found)
