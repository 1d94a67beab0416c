"""How a comparison reads on a terminal, and as Markdown."""

from __future__ import annotations

import re
import textwrap
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING

from moeprune.cli.compare_beside import beside_sections
from moeprune.cli.compare_cells import p_value, place, plural
from moeprune.cli.compare_sections import Section, sections
from moeprune.cli.compare_tradeoff import tradeoff_sections
from moeprune.cli.options import printable
from moeprune.cli.text import table
from moeprune.hub import markdown

if TYPE_CHECKING:
    from moeprune.evaluate.comparison.comparing import Comparison
    from moeprune.evaluate.comparison.regressions import Regression

_NUMBERS = re.compile(r"[-+0-9.,%/<\[\] ]+")
_WIDTH = 100
_MANY, _NARROW = 4, 14  # columns, and characters of their names where there are more
_WIDEST, _NAME = 26, 19  # characters of a name in a table


def comparison_text(found: Comparison, *, all_domains: bool, by_seed: bool) -> str:
    """What ``moeprune compare`` prints."""
    lines = [printable(_head(found))]
    for section in _all(found, all_domains, by_seed):
        cells = _fitting(section.rows)
        shown = [table(cells)] if cells else []
        lines += ["", printable(section.title), *shown, *_wrapped(section.notes)]
    return "\n".join([*lines, "", *_wrapped(_said(found))])


def comparison_markdown(found: Comparison, *, all_domains: bool, by_seed: bool) -> str:
    """The same for a model card or a comment: one table a section."""
    blocks = [f"**{markdown.escape(_head(found))}**"]
    for section in _all(found, all_domains, by_seed):
        blocks.append(f"**{markdown.escape(section.title)}**")
        rows = [[_cell(cell.strip()) for cell in row] for row in section.rows]
        blocks += [markdown.table(rows[0], rows[1:])] if rows else []
        blocks += [markdown.escape(note) for note in section.notes]
    blocks += [f"- {markdown.escape(line)}" for line in _said(found)]
    return "\n\n".join(blocks)


def regression_text(found: Sequence[Regression], limit: float) -> str:
    """The one line that a failed check ends with."""
    first, more = found[0], len(found) - 1
    rest = f" ({plural(more, 'more regression')})" if more else ""
    return (
        f"{first.variant} lost {-first.points:.2f} points on {_where(first)}, more than the "
        f"{limit:g} allowed{rest}."
    )


def _where(one: Regression) -> str:
    if one.task is None:
        return "all questions"
    return one.task if one.domain is None else place(one.task, one.domain)


def _all(found: Comparison, all_domains: bool, by_seed: bool) -> Iterator[Section]:
    yield from sections(found, all_domains=all_domains, by_seed=by_seed)
    yield from beside_sections(found)
    yield from tradeoff_sections(found.tradeoff)


def _head(found: Comparison) -> str:
    model = found.model.get("name")
    of = f" ({model})" if model and model != found.base else ""
    return (
        f"{plural(len(found.variants), 'variant')} against {found.base}{of}: change = variant - "
        f"base, {100 * found.level:g}% intervals"
    )


def _said(found: Comparison) -> Iterator[str]:
    yield from _legend(found)
    yield from _not_ruled_out(found)
    yield from (f"warning: {line}" for line in found.warnings)
    yield from (
        f"regression: {one.variant} lost {-one.points:.2f} points on {_where(one)}, p "
        f"{p_value(one.p, sign=True)}"
        for one in found.regressions
    )
    if found.limit is not None and not found.regressions:
        yield f"no regression beyond {found.limit.points:g} points by {found.limit.by}."


def _legend(found: Comparison) -> Iterator[str]:
    parts = [task.overall for variant in found.variants for task in variant.tasks.values()]
    if not parts:
        return
    plain = any(part.seeds == 1 and part.to_wrong is not None for part in parts)
    other = any(part.seeds > 1 or part.to_wrong is None for part in parts)
    tests = ["exact McNemar"] * plain + ["sign-flip test of each question's mean"] * other
    # The tests of all tasks together are shown only where a variant answered several.
    several = any(
        sum(task.is_accuracy for task in variant.tasks.values()) > 1 for variant in found.variants
    )
    overall = found.families["overall"] if several else 0
    apart = any(
        part.low is not None
        and part.high is not None
        and (part.low <= 0 <= part.high) is (part.p < 1 - found.level)
        for part in parts
    )
    yield (
        "lost/won: answers right in the base alone / in the variant alone. "
        f"p: {' or '.join(tests)}, two-sided. Holm p: over "
        f"{plural(found.families['tasks'], 'test')} of variants x tasks"
        + (f", of all tasks together over {overall}" if overall > 1 else "")
        + ". resolves: the smallest change that so many questions show as significant, with as "
        "many flips as were seen." + (" Where an interval and p disagree, p decides." * apart)
    )


def _not_ruled_out(found: Comparison) -> Iterator[str]:
    """What a difference that is not significant may still hide, a variant at a time."""
    hidden = []
    for variant in found.variants:
        limits = [
            (task.overall.low, name)
            for name, task in variant.tasks.items()
            if task.overall.scale != 1 and task.overall.low is not None
            if not task.overall.significant
        ]
        if limits and min(limits)[0] < 0:
            low, name = min(limits)
            hidden.append(f"{variant.name} up to {-low:.2f} points on {name}")
    if hidden:
        yield (
            "Not significant is no proof of equality. Losses that are not ruled out: "
            f"{'; '.join(hidden)}."
        )


def _cell(cell: str) -> str:
    """A cell of Markdown; numbers and intervals mean nothing there, and are left readable."""
    return cell if _NUMBERS.fullmatch(cell) else markdown.escape(cell)


def _wrapped(lines: Iterable[str]) -> Iterator[str]:
    for line in lines:
        yield from textwrap.wrap(line, _WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _fitting(rows: Sequence[Sequence[str]]) -> list[list[str]]:
    """Cells that leave a table within the width of a terminal."""
    first = _NAME if rows and rows[0][0] == "variant" else _WIDEST
    cells = [[_clipped(row[0], first), *map(_clipped, row[1:])] for row in rows]
    if cells and len(cells[0]) > _MANY:  # names of variants beside each other
        cells[0] = [_clipped(cell, _NARROW) for cell in cells[0]]
    return cells


def _clipped(cell: str, width: int = _WIDEST) -> str:
    """A long name by its end, where names of paths and domains differ."""
    cell = printable(cell)
    return cell if len(cell) <= width else f"…{cell[1 - width :]}"
