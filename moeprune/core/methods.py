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
        option: the option that puts another criterion in the place of the method's own:
            ``CRITERION`` of methods that rank by it, ``SIGNAL`` of methods that weigh by it what
            each domain loses, or ``""``: there is none.
        about: one line for ``--help``.
    """

    criterion: str
    allocator: str
    allocation: str
    pooling: str
    option: str
    about: str


CRITERION = "criterion"
SIGNAL = "signal"

AUTO = "auto"  # chooses among the others once the stats are read: core/verdict.py
MASS = "mass"  # the router mass of the MESA paper: what domain losses are stated in
RANDOM = "random"
BY_TARGET = "by target"  # the allocation where the runtime decides: core/targets.py
EVOLVED = "evolved"  # the allocation of a method that searches, with the model at hand

SUMS = "sums"
ROWS = "rows"
DOMAINS = "domains"
SHARES = "shares"
POOLINGS: Mapping[str, str] = {
    SUMS: "the criterion of pooled sums, as it is",
    ROWS: "the criterion of pooled sums, rows normalised to 1",
    DOMAINS: "the mean over domains of each domain's criterion, rows normalised to 1",
    SHARES: "the mean over domains of each domain's criterion, all its layers scaled to sum to 1",
}

# Uniform is the default of most methods, because any runtime loads the checkpoint it gives. Not of
# the one that searches the counts of layers, nor of ``best``, which goes by the target.
METHODS: Mapping[str, Method] = {
    AUTO: Method(
        MASS,
        "mesa",
        "uniform",
        ROWS,
        "",
        "best, mesa or reap, by what the stats say; the plan says why",
    ),
    "best": Method(
        "fisher-cf",
        "minimax",
        BY_TARGET,
        SHARES,
        SIGNAL,
        "by the loss itself (calibrate --loss-aware): its worst domain loses least, solved",
    ),
    "domain-reap": Method(
        "reap",
        "rank",
        "uniform",
        DOMAINS,
        CRITERION,
        "REAP of each domain by itself, normalised and averaged: a control",
    ),
    "evoesap": Method(
        "reap",
        "evoesap",
        EVOLVED,
        SUMS,
        CRITERION,
        "REAP within a layer; how many leave each layer is searched by running the model",
    ),
    "mesa": Method(
        MASS,
        "mesa",
        "uniform",
        ROWS,
        SIGNAL,
        "least router mass leaves, protecting the domain that loses most",
    ),
    "mesa-exact": Method(
        MASS,
        "mesa-exact",
        "uniform",
        ROWS,
        SIGNAL,
        "the same aim, solved to a proven gap; takes up to --time-limit",
    ),
    "random": Method(RANDOM, "rank", "uniform", SUMS, "", "a seeded draw: the control"),
    "reap": Method(
        "reap",
        "rank",
        "uniform",
        SUMS,
        CRITERION,
        "experts leave that add least when they are used",
    ),
    "rm-uniform": Method(
        MASS, "rank", "uniform", SUMS, CRITERION, "least router mass leaves: a control"
    ),
}

# Methods that plan from the stats alone, with either allocation.
FROM_STATS = tuple(name for name, found in METHODS.items() if found.allocation != EVOLVED)


def method(name: str, *, criterion: str | None = None, signal: str | None = None) -> Method:
    """A method by name, with another criterion if one is asked for.

    Args:
        name: one of ``METHODS``.
        criterion: what a method that ranks ranks by; None = its own.
        signal: what a method that protects domains weighs their losses by; None = its own.

    Raises:
        UsageError: no such method, or one that does not take what was given.
    """
    found = METHODS[known(name, METHODS, kind="method")]
    for option, value in ((CRITERION, criterion), (SIGNAL, signal)):
        if value is None:
            continue
        if option != found.option:
            raise UsageError(
                f"--{option} {value} does not go with --method {name}, {_takes(found)}. "
                f"--{option} goes with: {', '.join(_with(option))}."
            )
        if option == SIGNAL and value == RANDOM:
            raise UsageError(
                f"--signal {RANDOM} says nothing of what a domain loses; use a criterion that "
                "measures, e.g. reap."
            )
        found = replace(found, criterion=value)
    return found


def _takes(found: Method) -> str:
    if found is METHODS[AUTO]:
        return "which chooses what to go by itself"
    own = f"which goes by {found.criterion}"
    return f"{own} or another --{found.option}" if found.option else f"{own} alone"


def _with(option: str) -> list[str]:
    return sorted(name for name, found in METHODS.items() if found.option == option)
