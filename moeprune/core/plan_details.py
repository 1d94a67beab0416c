"""Details and predictions of a plan that moeprune reads again: a person may have edited them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from moeprune.errors import PlanError


def check_details(details: Mapping[str, Any], domains: Iterable[str], path: object) -> None:
    """Check the entries that moeprune reads, where a plan has them.

    Args:
        details: the plan's.
        domains: those that it states losses of.
        path: of the plan, for messages.

    Raises:
        PlanError: an entry of another form; take it out, or plan again.
    """
    if "signal" in details:
        signal = _entries(details["signal"], "signal", path)
        losses = _entries(signal.get("domain_loss"), "signal.domain_loss", path)
        good = isinstance(signal.get("name"), str) and all(map(_share, losses.values()))
        good = good and set(losses) == set(domains) and signal.get("worst_domain") in [*losses]
        if not (good and _share(signal.get("worst_domain_loss"))):
            raise _malformed("signal", path)
    if "predicted" in details:
        of = _entries(details["predicted"], "predicted", path)
        good = type(of.get("temperature")) in (int, float) and of["temperature"] > 0
        if not (good and of.get("loss") in (None, "completion", "all")):
            raise _malformed("predicted", path)
    if "unseen" in details:
        unseen = _entries(details["unseen"], "unseen", path)
        layers = _entries(unseen.get("layers"), "unseen.layers", path)
        counts = _entries(unseen.get("domains"), "unseen.domains", path)
        good = all(type(ids) is list and all(map(_count, ids)) for ids in layers.values())
        if not (good and all(map(_count, (unseen.get("experts"), *counts.values())))):
            raise _malformed("unseen", path)
    if "search" in details:
        search = _entries(details["search"], "search", path)
        fitness = _entries(search.get("fitness"), "search.fitness", path)
        domains = _entries(search.get("domains", {}), "search.domains", path)
        each = [_entries(esap, "search.domains", path) for esap in domains.values()]
        good = all(_share(of.get(name)) for of in (fitness, *each) for name in ("best", "uniform"))
        numbers = ("generations", "candidates", "evaluations")
        if not (good and all(_count(search.get(name)) for name in numbers)):
            raise _malformed("search", path)


def check_predicted(predicted: Mapping[str, Any], worst: str | None, path: object) -> None:
    """Check what a plan predicts of the loss.

    Args:
        predicted: domain -> nats per target token.
        worst: the domain with the largest that counts, or None.
        path: of the plan, for messages.

    Raises:
        PlanError: a number that no prediction is, or a worst domain that has none.
    """
    for name, nats in predicted.items():
        if type(nats) not in (int, float) or nats < 0:
            raise PlanError(
                f"{path}: predicted.{name} is {nats!r}; it should be a number from 0 up, nats per "
                "target token. Undo the edit, or take 'predicted' and 'worst_predicted' out."
            )
    if (worst is None) != (not predicted) or (worst is not None and worst not in predicted):
        raise PlanError(
            f"{path}: worst_predicted is {worst!r}, which 'predicted' does not hold. Undo the "
            "edit, or take 'predicted' and 'worst_predicted' out."
        )


def _share(value: Any) -> bool:
    return type(value) in (int, float) and 0 <= value <= 1


def _count(value: Any) -> bool:
    return type(value) is int and value >= 0


def _entries(value: Any, name: str, path: object) -> Mapping[str, Any]:
    if not isinstance(value, dict):
        raise _malformed(name, path)
    return value


def _malformed(name: str, path: object) -> PlanError:
    return PlanError(
        f"{path}: details.{name} is not what moeprune wrote there; undo the edit, or take the "
        f"entry {name.partition('.')[0]} out."
    )
