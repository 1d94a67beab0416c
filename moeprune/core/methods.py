"""Pruning methods by name: which criterion, which allocator, which allocation. Data, not code."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from moeprune.errors import UsageError
from moeprune.plugins import known


@dataclass(frozen=True, slots=True)
class Method:
    """A named combination.

    Attributes:
        criterion: the file in ``criteria/``.
        allocator: the file in ``allocators/``.
        allocation: the default.
        pooling: how the criterion is taken over the domains, see ``POOLINGS``.
        any_criterion: whether another criterion may take the place of the method's own.
        about: one line for ``--help``.
    """

    criterion: str
    allocator: str
    allocation: str
    pooling: str
    any_criterion: bool
    about: str


SUMS = "sums"
ROWS = "rows"
DOMAINS = "domains"
POOLINGS: Mapping[str, str] = {
    SUMS: "the criterion of pooled sums, as it is",
    ROWS: "the criterion of pooled sums, rows normalised to 1",
    DOMAINS: "the mean over domains of each domain's criterion, rows normalised to 1",
}

# Uniform is the default of every method, because any runtime loads the checkpoint it gives.
METHODS: Mapping[str, Method] = {
    "mesa": Method(
        "mass", "mesa", "uniform", ROWS, False, "router mass, protecting the domain that loses most"
    ),
    "random": Method(
        "random", "rank", "uniform", SUMS, False, "a seeded random choice: the control"
    ),
    "reap": Method("reap", "rank", "uniform", SUMS, True, "mean gate-weighted output norm"),
    "rm-uniform": Method("mass", "rank", "uniform", SUMS, True, "router mass"),
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
    return replace(found, criterion=criterion)
