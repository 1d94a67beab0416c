"""Pruning methods by name: which criterion, which allocator, which allocation. Data, not code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from moeprune.errors import UsageError
from moeprune.plugins import known


@dataclass(frozen=True, slots=True)
class Method:
    """A named combination.

    Attributes:
        criterion: the file in ``criteria/``.
        allocator: the file in ``allocators/``.
        allocation: the default.
        any_criterion: whether another criterion may take the place of the method's own.
        about: one line for ``--help``.
    """

    criterion: str
    allocator: str
    allocation: str
    any_criterion: bool
    about: str


# Uniform is the default of every method, because any runtime loads the checkpoint it gives.
METHODS: Mapping[str, Method] = {
    "mesa": Method(
        "mass", "mesa", "uniform", False, "router mass, protecting the domain that loses most"
    ),
    "random": Method("random", "rank", "uniform", False, "a seeded random choice: the control"),
    "reap": Method("reap", "rank", "uniform", True, "mean gate-weighted output norm"),
    "rm-uniform": Method("mass", "rank", "uniform", True, "router mass"),
}


def method(name: str, *, criterion: str | None = None) -> Method:
    """A method by name, with another criterion if one is asked for.

    Raises:
        UsageError: no such method, or one that works with its own criterion only.
    """
    found = METHODS[known(name, METHODS, kind="method")]
    if criterion is None or criterion == found.criterion:
        return found
    if not found.any_criterion:
        others = ", ".join(sorted(key for key, value in METHODS.items() if value.any_criterion))
        raise UsageError(
            f"--criterion {criterion} does not go with --method {name}, which ranks by "
            f"{found.criterion}. Use one of: {others}."
        )
    return Method(criterion, found.allocator, found.allocation, True, found.about)
