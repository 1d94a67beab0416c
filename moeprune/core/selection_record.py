"""What ``run.json`` says of selections, checked: people and other versions may write it, too."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeprune.errors import RunError


def check_selection(body: Any, where: object) -> Mapping[str, Any]:
    """The ``agreement`` of a run, as ``evaluate.selection.SelectionCounts.to_json`` makes it.

    Args:
        body: as read; ``{}``: the run says nothing of it.
        where: the file, for messages.

    Raises:
        RunError: it is of another form.
    """
    if body == {}:
        return {}
    good = (
        isinstance(body, dict)
        and _texts(body.get("with"), "name", "fingerprint")
        and _numbers(body.get("k"), whole=True)
        and len(body["k"]) == 2
        and _part(body, intervals=True)
        and isinstance(body.get("domains"), dict)
        and bool(body["domains"])
        and all(_part(one, intervals=False) for one in body["domains"].values())
        and isinstance(body.get("layers"), list)
        and all(_shares(one) and type(one.get("layer")) is int for one in body["layers"])
        and max((len(one["ranks"]) for one in body["layers"]), default=0) == len(body["ranks"])
        and all(len(one["ranks"]) == len(body["ranks"]) for one in body["domains"].values())
    )
    if not good:
        raise RunError(
            f"{where}: agreement is not of the form that this moeprune writes. Evaluate again."
        )
    return dict(body)


def _part(body: Any, *, intervals: bool) -> bool:
    if not _shares(body) or not all(
        type(body.get(name)) is int and body[name] > 0 for name in ("tokens", "documents")
    ):
        return False
    limits = body.get("intervals")
    if not intervals:
        return True
    return (
        isinstance(limits, dict)
        and isinstance(limits.get("ranks"), list)
        and len(limits["ranks"]) == len(body["ranks"])
        and all(
            one is None or (_numbers(one, whole=False) and len(one) == 2)
            for one in (*limits["ranks"], limits.get("same_set", 0), limits.get("overlap", 0))
        )
    )


def _shares(body: Any) -> bool:
    return (
        isinstance(body, dict)
        and _numbers(body.get("ranks"), whole=False)
        and bool(body["ranks"])
        and _numbers([body.get("same_set"), body.get("overlap")], whole=False)
    )


def _texts(body: Any, *names: str) -> bool:
    return isinstance(body, dict) and all(isinstance(body.get(name), str) for name in names)


def _numbers(values: Any, *, whole: bool) -> bool:
    kinds = (int,) if whole else (int, float)
    return isinstance(values, list) and all(type(value) in kinds for value in values)
