"""Whether two runs asked a task in the same way, by what their headers say."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from moeprune.core.run import Run
from moeprune.errors import MismatchError

# Which questions were asked is seen question by question; what is expected decides no answer.
_FREE = {"limit", "expected", "parts"}
_PART = ("version", "shots", "config")  # of a part of one of lm-eval's tasks
_MISSING = "nothing"


def check_protocol(base: Run, variant: Run, task: str) -> None:
    """Refuse what is certainly not the same; what a header does not say is let pass.

    Raises:
        MismatchError: kind, protocol, version or shots differ.
    """
    for what, one, other in _differences(base.tasks[task], variant.tasks[task]):
        raise MismatchError(
            f"task {task}: {base.name} and {variant.name} differ in {what} "
            f"({_short(one)} and {_short(other)}), so their answers cannot be paired. Evaluate "
            "both alike."
        )


def _differences(
    one: Mapping[str, Any], other: Mapping[str, Any]
) -> Iterator[tuple[str, Any, Any]]:
    for key in ("kind", "version", "shots", "generation"):
        if key in one and key in other and not _agree(one[key], other[key]):
            yield key, one[key], other[key]
    if "sha256" not in one or one["sha256"] == other.get("sha256", one["sha256"]):
        return
    ours, theirs = one.get("protocol"), other.get("protocol")
    if not isinstance(ours, Mapping) or not isinstance(theirs, Mapping):
        yield "questions or protocol", one["sha256"], other["sha256"]
        return
    for key in sorted({*ours, *theirs} - _FREE):
        if ours.get(key, _MISSING) != theirs.get(key, _MISSING):
            yield key, ours.get(key, _MISSING), theirs.get(key, _MISSING)
    mine, others = (_parts(body.get("parts")) for body in (ours, theirs))
    for name in sorted(set(mine) & set(others)):
        for key in _PART:
            if mine[name].get(key) != others[name].get(key):
                yield f"{key} of {name}", mine[name].get(key), others[name].get(key)


def _parts(value: Any) -> dict[str, Mapping[str, Any]]:
    if not isinstance(value, Mapping):
        return {}
    return {name: part for name, part in value.items() if isinstance(part, Mapping)}


def _agree(one: Any, other: Any) -> bool:
    """Equal; of tables by subtask, equal where both have the subtask."""
    if isinstance(one, Mapping) and isinstance(other, Mapping):
        return all(one[name] == other[name] for name in one if name in other)
    return bool(one == other)


def _short(value: object) -> str:
    text = str(value)
    return text if len(text) <= 24 else f"{text[:12]}…"
