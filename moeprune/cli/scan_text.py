"""How a scan reads on a terminal, within 100 columns: words and figures, nothing computed anew."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from textwrap import wrap
from typing import Any

from moeprune.cli.compare_cells import growth, p_value, percent, signed
from moeprune.cli.text import table
from moeprune.core.scan import Scan
from moeprune.core.scan_grid import ABLATION, CONTROL, FOLDED, GAIN, NATIVE
from moeprune.core.scan_rows import Row
from moeprune.core.scan_words import shown

_WIDTH = 100
_NOTHING = "-"
_COLUMNS = {"perplexity-tuning": "tuning", "perplexity-held-out": "held-out"}


def scan_json(scan: Scan, output: Path) -> dict[str, Any]:
    """What ``moeprune scan --json`` prints: scan.json, and what to run next."""
    return {**scan.to_json(), "output": str(output), "commands": list(scan.commands)}


def scan_text(scan: Scan, output: Path | None, *, said: Collection[str] = ()) -> str:
    """What ``moeprune scan`` prints: tables, what they say, what to run next.

    Args:
        scan: the result.
        output: where it lies; None: nowhere.
        said: findings of guards that were printed before a question was asked.
    """
    parts = [_title(scan), table(list(_texts(scan)))]
    for task in scan.rows[0].tasks:
        parts.append(table(list(_task(scan, task))))
    parts.append(_legend(scan))
    parts.append("\n".join(_wrapped(f"- {finding.text}") for finding in scan.findings))
    lines = list(_warnings(scan, said))
    parts += ["\n".join(map(_wrapped, lines))] if lines else []
    if output is not None:
        parts.append(f"written to {output}: scan.json, and a run folder a row")
    if scan.commands:
        parts.append("next:\n" + "\n".join(f"  {line}" for line in scan.commands))
    return "\n\n".join(parts)


def _warnings(scan: Scan, said: Collection[str]) -> Iterator[str]:
    """What guards found, once each: what is said of several rows, by the first of them."""
    names = [f" {row.point.name} " for row in scan.rows]
    found: dict[tuple[str, ...], list[str]] = {}
    for guard in scan.guards:
        level, text = guard["level"], guard["text"]
        of_a_row = any(name in f" {text} " for name in names)
        key = (level, guard["name"], guard["task"]) if of_a_row else (level, text)
        found.setdefault(key, []).append(text)
    for (level, *_), texts in found.items():
        if texts[0] not in said:
            rows = len(dict.fromkeys(texts))
            more = f" (True of {rows} of {len(names)} rows; scan.json has each.)" * (rows > 1)
            yield f"{'not valid' if level == 'stop' else 'warning'}: {texts[0]}{more}"


def _title(scan: Scan) -> str:
    model, native = scan.model, scan.native
    title = (
        f"{model.get('name', 'a model')}: {model.get('model_type')}, {model.get('layers')} MoE "
        f"layers x {native['experts']} experts, natively k1={native['k1']} k2={native['k2']}"
    )
    if scan.plan is not None:
        title += f", after {scan.plan['method']} ({scan.plan['ratio']:.1%} removed)"
    check = scan.check
    seen = (
        f"self-check: {check['routers']} routers follow a policy, and the native pair gives the "
        f"native logits; at k1={check['compared']['k1']} the loss moves from "
        f"{check['native_loss']:.4f} to {check['compared_loss']:.4f}"
    )
    return f"{_wrapped(title)}\n{_wrapped(seen)}"


def _texts(scan: Scan) -> Iterator[list[str]]:
    splits = list(scan.texts)
    heads = [_COLUMNS.get(name, name) for name in splits]
    yield ["perplexity", "k1", "k2", "gain", *heads, "change, %", "p", "active", "of native"]
    lowest = {(pick.k1, pick.k2) for pick in scan.picks if splits and pick.by == splits[-1]}
    for row in scan.rows:
        figures = row.texts[splits[-1]]
        marked = (row.point.k1, row.point.k2) in lowest and row.point.kind in _MARKED
        cells = [shown(row.texts[name].perplexity) for name in splits]
        cells[-1] = f"{'*' * marked}{cells[-1]}"
        yield [
            *_point(row, scan.native["k1"]),
            _NOTHING if row.gain is None else f"{row.gain:.3f}",
            *cells,
            _NOTHING if figures.ratio is None else growth(figures.ratio),
            _NOTHING if figures.ratio is None else p_value(figures.p),
            _amount(row.cost["total"]),
            f"{row.cost['relative']['total']:.0%}",
        ]


_MARKED = (NATIVE, CONTROL, "grid")


def _task(scan: Scan, task: str) -> Iterator[list[str]]:
    questions = scan.rows[0].tasks[task].questions
    name = task if len(task) <= 40 else f"{task[:39]}…"
    yield [
        f"{name} (n={questions:,})",
        "k1",
        "k2",
        "accuracy",
        "change",
        "95%",
        "lost/won",
        "Holm p",
    ]
    best = {(pick.k1, pick.k2) for pick in scan.picks if pick.by == task}
    for row in scan.rows:
        figures = row.tasks[task]
        marked = (row.point.k1, row.point.k2) in best and row.point.kind in _MARKED
        known = figures.low is not None and figures.high is not None
        yield [
            *_point(row, scan.native["k1"]),
            f"{'*' * marked}{percent(figures.accuracy)}",
            _NOTHING if figures.points is None else signed(figures.points, 2),
            f"[{signed(figures.low or 0, 2)}, {signed(figures.high or 0, 2)}]"
            if known
            else _NOTHING,
            _NOTHING if figures.lost is None else f"{figures.lost:,}/{figures.won:,}",
            p_value(figures.p_holm),
        ]


def _point(row: Row, native_k1: int) -> list[str]:
    """What the row is, and its k₁ and k₂."""
    point = row.point
    label = {NATIVE: "native", FOLDED: "folded gain", CONTROL: "k2 = k1"}.get(point.kind, "")
    if point.default:
        label = "default reduction" if point.k1 <= native_k1 else "default"
    elif point.policy is not None and point.kind == GAIN:
        label = f"gain {point.policy.gain:g}"
    elif point.policy is not None and point.kind == ABLATION:
        label = {"uniform": "equal weights"}.get(
            str(point.policy.ablation), f"{point.policy.ablation} experts"
        )
    return [label, str(point.k1), str(point.k2)]


def _legend(scan: Scan) -> str:
    text = (
        "*: the best k2 of that k1. gain: what a token's weights sum to, before the family's own "
        "scale. active: parameters a token activates."
    )
    tested = any(row.tasks for row in scan.rows)
    if tested:
        text += (
            " lost/won: right in native alone / here alone; p: exact McNemar, corrected by Holm "
            "over rows x tasks."
        )
    chunks = ", ".join(
        f"{_COLUMNS.get(name, name)} {split['tokens']:,} tokens in {_chunks(split['chunks'])}"
        for name, split in scan.texts.items()
    )
    return _wrapped(f"{text} Text: {chunks}; p of perplexity: over chunks.")


def _chunks(number: int) -> str:
    return "1 chunk" if number == 1 else f"{number:,} chunks"


def _wrapped(text: str) -> str:
    return "\n  ".join(wrap(text, _WIDTH - 2, break_long_words=False, break_on_hyphens=False))


def _amount(number: int) -> str:
    """Parameters: ``1.25 M``."""
    value = float(number)
    for name in ("", " k", " M", " B"):
        if value < 1000:
            return f"{value:.3g}{name}"
        value /= 1000
    return f"{value:.3g} T"
