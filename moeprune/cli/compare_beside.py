"""What stands beside accuracy, as tables: do answers end, and what does perplexity say."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING

from moeprune.cli.agreement_text import agreement_cells, agreement_title
from moeprune.cli.compare_cells import growth, number, p_value, percent, signed
from moeprune.cli.compare_losses import loss_sections
from moeprune.cli.compare_sections import COLUMNS, Section

if TYPE_CHECKING:
    from moeprune.evaluate.comparison.comparing import Comparison
    from moeprune.evaluate.comparison.differences import Difference
    from moeprune.evaluate.comparison.variants import VariantComparison
    from moeprune.evaluate.comparison.writing import Writing

_LOW = 0.05  # a p below it gets a mark


def beside_sections(found: Comparison) -> Iterator[Section]:
    """Truncation, loops, lengths, selections, losses of answers, perplexity, and its ranks."""
    yield from _written(found, "answers cut off by their budget", lambda made: made.truncation)
    yield from _written(found, "answers that fall into a loop", lambda made: made.loops)
    yield from _written(found, "tokens of an answer: mean, and change", lambda made: made.tokens)
    yield from _selection(found)
    yield from loss_sections(found)
    yield from _perplexity(found)
    yield from _ranks(found)


def _written(
    found: Comparison, title: str, of: Callable[[Writing], Difference | None]
) -> Iterator[Section]:
    """Tasks by variants; shares as they are, lengths as changes."""
    names = list(dict.fromkeys(name for one in found.variants for name in one.tasks))
    every = [part for one in found.variants for name in names if (part := _part(one, name, of))]
    if every and all(part.scale != 1 and part.base == part.variant == 0 for part in every):
        yield Section(title, [], ["None, of any model."])
        return
    for start in range(0, len(found.variants), COLUMNS):
        block = found.variants[start : start + COLUMNS]
        rows = [["task", found.base, *(one.name for one in block)]]
        for name in names:
            parts = [_part(one, name, of) for one in block]
            known = [part for part in parts if part is not None]
            if known:
                base = percent(known[0].base) if known[0].scale != 1 else f"{known[0].base:.1f}"
                rows.append([name, base, *(_share(part) for part in parts)])
        if len(rows) > 1:
            marked = any(cell.endswith("*") for row in rows for cell in row)
            notes = [f"* p < {_LOW}, of this one number alone."] if marked else []
            yield Section(title, rows, notes)


def _part(
    variant: VariantComparison, name: str, of: Callable[[Writing], Difference | None]
) -> Difference | None:
    made = variant.tasks[name].writing if name in variant.tasks else None
    return None if made is None else of(made)


def _share(part: Difference | None) -> str:
    if part is None:
        return "- "
    shown = percent(part.variant) if part.scale != 1 else signed(part.points, 1)
    return f"{shown}{'*' if part.p < _LOW else ' '}"


def _perplexity(found: Comparison) -> Iterator[Section]:
    rows = [["variant", "texts", "n", found.base, "perplexity", "change, %", "p"]]
    for variant in found.variants:
        for name, texts in variant.perplexity.items():
            limits = texts.ratio_interval
            between = "" if limits is None else f" [{growth(limits.low)}, {growth(limits.high)}]"
            rows.append(
                [
                    variant.name,
                    name,
                    f"{texts.windows:,}",
                    number(texts.baseline, 3),
                    number(texts.variant, 3),
                    f"{growth(texts.ratio)}{between}",
                    p_value(texts.p),
                ]
            )
    if len(rows) > 1:
        yield Section("perplexity: never a reason on its own", rows)


def _selection(found: Comparison) -> Iterator[Section]:
    """Runs beside each other, those that were held against one model on one text together."""
    groups: dict[str, list[str]] = {}
    for name, own in found.agreement.items():
        title = f"{agreement_title(own)} (fingerprint {own['with']['fingerprint'][:12]})"
        groups.setdefault(title, []).append(name)
    titles = [title.rpartition(" (")[0] for title in groups]
    for title, names in groups.items():
        short = title.rpartition(" (")[0]
        for start in range(0, len(names), COLUMNS):
            block = names[start : start + COLUMNS]
            cells = {name: agreement_cells(found.agreement[name]) for name in block}
            lines = max(cells.values(), key=len)  # of the most ranks
            rows = [["experts", *block]]
            rows += [[line, *(cells[name].get(line, "-") for name in block)] for line in lines]
            yield Section(short if titles.count(short) == 1 else title, rows)


def _ranks(found: Comparison) -> Iterator[Section]:
    rows = [["perplexity of", "accuracy of", "models", "ρ", "p"]]
    for one in found.beside:
        if one.correlation is not None and one.correlation.value is not None:
            rho, p = one.correlation.value, one.correlation.p
            asked = one.task or "all tasks"
            rows.append([one.texts, asked, str(one.correlation.n), f"{rho:+.2f}", p_value(p)])
    if len(rows) > 1:
        yield Section("does perplexity rank the models as accuracy does? ρ = -1: it does", rows)
