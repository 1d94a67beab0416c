"""How the loss of right answers changed beside what was predicted, as tables of cells."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from moeprune.cli.answer_loss_text import TITLE, change, nats, places
from moeprune.cli.compare_sections import COLUMNS, Section

if TYPE_CHECKING:
    from moeprune.core.answer_loss import DomainLoss
    from moeprune.evaluate.comparison.comparing import Comparison


def loss_sections(found: Comparison) -> Iterator[Section]:
    """Domains by variants, the largest change first; how predictions rank stands below the last."""
    own: dict[str, list[DomainLoss]] = {}
    for one in found.losses.changes:
        own.setdefault(one.variant, []).append(one.loss)
    blocks = [list(own)[start : start + COLUMNS] for start in range(0, len(own), COLUMNS)]
    for names in blocks:
        losses = [loss for name in names for loss in own[name]]
        title, place = places(losses)
        base = {place(loss): nats(loss.base) for loss in losses}
        most = {where: max(_size(one) for one in losses if place(one) == where) for where in base}
        rows = [["domain" if title else "task / domain", found.base, *names]]
        for where in sorted(base, key=lambda where: -most[where]):
            cells = {name: [one for one in own[name] if place(one) == where] for name in names}
            rows.append([where, base[where], *(_cell(cells[name]) for name in names)])
        predicted = any(loss.predicted is not None for loss in losses)
        head = f"{TITLE}{title}: change{' (predicted)' * predicted}"
        yield Section(head, rows, list(_notes(found)) if names is blocks[-1] else [])
    if not blocks and found.losses.left:
        yield Section(TITLE, [], list(_notes(found)))


def _notes(found: Comparison) -> Iterator[str]:
    ranked = found.losses.correlation
    if ranked is not None and ranked.value is not None:
        yield f"predicted and measured change, {ranked.n} of them: ρ = {ranked.value:+.2f}."
    if found.losses.left:
        yield f"Not of the same answers as {found.base}: {', '.join(found.losses.left)}."


def _size(loss: DomainLoss) -> float:
    return loss.change or 0.0


def _cell(losses: list[DomainLoss]) -> str:
    if not losses:
        return change(None)
    (loss,) = losses
    beside = "" if loss.predicted is None else f" ({change(loss.predicted)})"
    return f"{change(loss.change)}{beside}"
