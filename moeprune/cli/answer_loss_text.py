"""The loss of answers, measured and predicted, as a table."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from moeprune.cli.text import table
from moeprune.core.answer_loss import DomainLoss, domain_losses

_NOTHING = "-"
TITLE = "loss of the right answers, nats per token"


def answer_loss_text(found: Mapping[str, Any]) -> str:
    """What ``moeprune eval`` prints of a run: a line a domain, the largest change first."""
    losses = list(domain_losses(found))
    compared = any(one.change is not None for one in losses)
    predicted = any(one.predicted is not None for one in losses)
    title, place = places(losses)
    named = "domain" if title else "task / domain"
    head = [named, "tokens", *["without plan"] * compared, "loss", *["change"] * compared]
    rows = [[*head, *["predicted"] * predicted]]
    # The order of tasks and domains where nothing is compared.
    for one in sorted(losses, key=lambda one: -(one.change or 0.0)):
        row = [place(one), f"{one.tokens:,}"]
        row += [nats(one.base)] * compared
        row.append(nats(one.nats))
        row += [change(one.change)] * compared
        rows.append([*row, *[change(one.predicted)] * predicted])
    return f"{TITLE}{title}\n{table(rows)}"


def places(losses: Sequence[DomainLoss]) -> tuple[str, Callable[[DomainLoss], str]]:
    """What a title adds where all are of one task, and how a line is called then, or else."""
    tasks = {one.task for one in losses}
    if len(tasks) == 1:
        return f" ({tasks.pop()})", lambda one: one.domain
    return "", lambda one: f"{one.task} / {one.domain}"


def nats(value: float | None) -> str:
    """``0.0123``."""
    return _NOTHING if value is None else f"{value:.4f}"


def change(value: float | None) -> str:
    """``+0.0123``."""
    return _NOTHING if value is None else f"{value:+.4f}"
