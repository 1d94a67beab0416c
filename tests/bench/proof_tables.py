"""The tables of docs/loss-aware.md, from what proof_loss_aware.py measured.

S draws of the calibration text, N held-out questions of a domain, D domains.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.stats import spearmanr

from moeprune.evaluate.paired.holm import holm
from moeprune.evaluate.paired.mcnemar import McNemar
from moeprune.evaluate.paired.repeated import repeated

Array = NDArray[Any]
Key = tuple[str, float, str, str]  # model, ratio, allocation, method
RESAMPLES, SEED, LEVEL = 4000, 0, 0.05
NOVEL = "best"


class Answers:
    """Right answers of every plan.

    Attributes:
        right: key -> domain -> (S, N), 1 = right.
        models: names, in order.
    """

    def __init__(self, records: Sequence[Mapping[str, Any]], domains: Sequence[str]) -> None:
        self.domains = tuple(domains)
        self.models = tuple(dict.fromkeys(record["model"] for record in records))
        found: dict[Key, list[Mapping[str, Any]]] = {}
        for record in sorted(records, key=lambda record: record["draw"]):
            key = (record["model"], record["ratio"], record["allocation"], record["method"])
            found.setdefault(key, []).append(record)
        self.right: dict[Key, dict[str, Array]] = {
            key: {name: np.array([one["right"][name] for one in own]) for name in domains}
            for key, own in found.items()
        }

    def worst(self, key: Key) -> float:
        """Accuracy of the worst domain, mean over draws."""
        return float(self._share_SD(key).min(axis=1).mean())

    def mean(self, key: Key) -> float:
        """Mean accuracy of domains and draws."""
        return float(self._share_SD(key).mean())

    def _share_SD(self, key: Key) -> Array:
        return np.stack([own.mean(axis=1) for own in self.right[key].values()], axis=1)

    def all_NS(self, key: Key) -> Array:
        """Every question of every domain, (questions, draws)."""
        return np.concatenate([own.T for own in self.right[key].values()])

    def difference(self, one: Key, other: Key) -> tuple[float, float, float, float]:
        """Of the worst domains' accuracy, ``one`` less ``other``: value, 95 % interval, p.

        A paired bootstrap: questions are drawn again within each domain, the same ones for both
        plans and all draws of the calibration text; p is two-sided.
        """
        rng = np.random.default_rng(SEED)
        lowest = [np.full((len(self._share_SD(key)), RESAMPLES), np.inf) for key in (one, other)]
        for domain in self.domains:
            count = self.right[one][domain].shape[1]
            times_RN = rng.multinomial(count, np.full(count, 1 / count), size=RESAMPLES)
            for low_SR, key in zip(lowest, (one, other), strict=True):
                np.minimum(low_SR, self.right[key][domain] @ times_RN.T / count, out=low_SR)
        drawn_R = lowest[0].mean(axis=0) - lowest[1].mean(axis=0)
        low, high = np.quantile(drawn_R, [LEVEL / 2, 1 - LEVEL / 2])
        tail = min((drawn_R <= 0).sum(), (drawn_R >= 0).sum())
        p = min(1.0, 2 * (float(tail) + 1) / (RESAMPLES + 1))
        return self.worst(one) - self.worst(other), float(low), float(high), p


def tables(
    records: Sequence[Mapping[str, Any]], *, domains: Sequence[str], papers: Sequence[str]
) -> str:
    """All tables, as Markdown."""
    answers = Answers(records, domains)
    ratios = sorted({key[1] for key in answers.right if key[1]})
    parts = [
        *(line for ratio in ratios for line in _accuracies(answers, ratio, (*papers, NOVEL))),
        *_differences(answers, ratios, papers),
        *_all_questions(answers, ratios),
        *_predictions(records, answers),
        *(line for ratio in ratios for line in _others(answers, ratio, (*papers, NOVEL))),
    ]
    return "\n".join(parts) + "\n"


def _head(title: str, columns: Sequence[str]) -> list[str]:
    return ["", f"**{title}**", "", f"| {' | '.join(columns)} |", "|---" * len(columns) + "|"]


def _cell(answers: Answers, key: Key) -> str:
    if key not in answers.right:
        return "–"
    return f"{answers.worst(key):.3f} / {answers.mean(key):.3f}"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _accuracies(answers: Answers, ratio: float, methods: Sequence[str]) -> Iterator[str]:
    models = answers.models
    yield from _head(f"{ratio:.0%} removed, worst domain / mean", ["", *models])
    whole = [_cell(answers, (model, 0, "", "whole")) for model in models]
    yield _row(["whole", *whole])
    for allocation in ("uniform", "global"):
        for method in methods:
            cells = [_cell(answers, (model, ratio, allocation, method)) for model in models]
            bold = "**" if method == NOVEL else ""
            yield _row([f"{bold}{method}, {allocation}{bold}", *cells])


def _rival(answers: Answers, model: str, ratio: float, method: str) -> Key:
    """The allocation in which a method's worst domain does best: its best case."""
    keys = [(model, ratio, allocation, method) for allocation in ("uniform", "global")]
    return max(keys, key=lambda key: (answers.worst(key), answers.mean(key)))


def _differences(answers: Answers, ratios: Sequence[float], papers: Sequence[str]) -> Iterator[str]:
    for ratio in ratios:
        for allocation in ("uniform", "global"):
            title = f"{ratio:.0%}: worst domain of {NOVEL}, {allocation}, less that of"
            yield from _head(title, ["", *papers, "beats all, p < 0.05"])
            for model in answers.models:
                ours = (model, ratio, allocation, NOVEL)
                cells, largest, all_up = [], 0.0, True
                for method in papers:
                    rival = _rival(answers, model, ratio, method)
                    value, low, high, p = answers.difference(ours, rival)
                    cells.append(f"{value:+.3f} ({low:+.2f}…{high:+.2f})")
                    largest, all_up = max(largest, p), all_up and value > 0
                word = ("yes" if largest < LEVEL else "not significantly") if all_up else "no"
                yield _row([model, *cells, f"{word}, p ≤ {largest:.2g}"])


def _all_questions(answers: Answers, ratios: Sequence[float]) -> Iterator[str]:
    rivals = ("reap", "mesa")
    rows: list[list[str]] = []
    p_values: list[tuple[float, float]] = []
    for ratio in ratios:
        for model in answers.models:
            ours = (model, ratio, "global", NOVEL)
            for method in rivals:
                rival = _rival(answers, model, ratio, method)
                first = McNemar.of(*(answers.all_NS(key)[:, 0] for key in (rival, ours)))
                every = repeated(*(answers.all_NS(key) for key in (rival, ours)))
                flips = f"{first.c} : {first.b}"
                rows.append([f"{ratio:.0%} {model}", method, flips, f"{every.difference:+.3f}"])
                p_values.append((first.p, every.p))
    adjusted = [holm([pair[at] for pair in p_values]) for at in (0, 1)]
    columns = ["", "against", "flips to right : to wrong", "McNemar p", "all draws", "sign-flip p"]
    title = f"All questions, {NOVEL}, global: McNemar of the first draw; sign flips of all"
    yield from _head(f"{title}; p by Holm of {len(rows)}", columns)
    for row, one, every in zip(rows, *adjusted, strict=True):
        yield _row([*row[:3], f"{one:.2g}", row[3], f"{every:.2g}"])


def _predictions(records: Sequence[Mapping[str, Any]], answers: Answers) -> Iterator[str]:
    columns = ["", "plans", "worst domain", "mean", *answers.domains, "measured / predicted"]
    title = "Spearman of the predicted loss of answers against the measured one, over plans"
    yield from _head(title, columns)
    for model in answers.models:
        plans: dict[str, Mapping[str, Any]] = {}
        for record in records:
            if record["model"] == model and record["ratio"]:
                plans.setdefault(str(sorted(record["loss"].items())), record)
        foretold, found = (
            np.array([[plan[what][name] for name in answers.domains] for plan in plans.values()])
            for what in ("predicted", "loss")
        )
        pairs = [
            (foretold.max(axis=1), found.max(axis=1)),
            (foretold.mean(axis=1), found.mean(axis=1)),
            *zip(foretold.T, found.T, strict=True),
        ]
        cells = [f"{float(spearmanr(one, other).statistic):.2f}" for one, other in pairs]
        whole = next(one for one in records if one["model"] == model and not one["ratio"])
        added = found - np.array([whole["loss"][name] for name in answers.domains])
        scale = float(np.median(added.mean(axis=1) / foretold.mean(axis=1)))
        yield _row([model, str(len(plans)), *cells, f"{scale:.1f}"])


def _others(answers: Answers, ratio: float, methods: Sequence[str]) -> Iterator[str]:
    names = dict.fromkeys(key[3] for key in answers.right if key[1] == ratio)
    first = {
        key: {name: own[:1] for name, own in right.items()} for key, right in answers.right.items()
    }
    only = Answers([], answers.domains)
    only.right, only.models = first, answers.models
    yield from _head(
        f"{ratio:.0%}, global, the first draw: other ways than {NOVEL}", ["", *answers.models]
    )
    for method in (NOVEL, *(name for name in names if name not in methods)):
        cells = [_cell(only, (model, ratio, "global", method)) for model in answers.models]
        yield _row([method, *cells])
