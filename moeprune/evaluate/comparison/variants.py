"""One variant against the base: every task, every domain, all of them together."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

import numpy as np

from moeprune.core.run import Run
from moeprune.evaluate.comparison.differences import Difference, difference, scores
from moeprune.evaluate.comparison.joining import Joined, Pair
from moeprune.evaluate.comparison.writing import Writing, writing
from moeprune.evaluate.paired.perplexity import PairedPerplexity, paired_perplexity

DEGENERATION = "degeneration"  # the kind of task whose right answers are those without a loop


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskComparison:
    """One task.

    Attributes:
        kind: of the task, as its header says.
        metric: what is compared; None: whether an answer is right.
        overall: all its questions.
        domains: name -> difference, the worst first; a task that is not divided has one.
        by_seed: seed -> difference; empty where there is one seed.
        writing: of written answers.
    """

    kind: str
    metric: str | None
    overall: Difference
    domains: Mapping[str, Difference]
    by_seed: Mapping[int, Difference] = field(default_factory=dict)
    writing: Writing | None = None

    @property
    def is_accuracy(self) -> bool:
        """Whether it is counted together with other tasks: not loops, nor scales of their own."""
        return self.overall.scale != 1 and self.kind != DEGENERATION

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        return {
            "kind": self.kind,
            "metric": self.metric,
            **self.overall.to_json(),
            "domains": {name: part.to_json() for name, part in self.domains.items()},
            "by_seed": {str(seed): part.to_json() for seed, part in self.by_seed.items()},
            "writing": self.writing and self.writing.to_json(),
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class VariantComparison:
    """One variant.

    Attributes:
        name: as tables call it.
        tasks: name -> comparison, of the tasks with scores, in the base's order.
        pooled: all questions of all tasks that are accuracies.
        perplexity: task -> comparison of texts.
        joined: how many answers only one of the two has.
    """

    name: str
    tasks: Mapping[str, TaskComparison]
    pooled: Difference | None
    perplexity: Mapping[str, PairedPerplexity]
    joined: Joined

    @property
    def mean_of_tasks(self) -> float | None:
        """Mean over tasks of the difference, in points: every task weighs the same."""
        points = [task.overall.points for task in self.tasks.values() if task.is_accuracy]
        return float(np.mean(points)) if points else None

    def parts(self) -> Iterator[tuple[str, str, Difference]]:
        """(task, domain, difference) of every domain that is measured in points."""
        for name, task in self.tasks.items():
            for domain, part in task.domains.items():
                if part.scale != 1:
                    yield name, domain, part

    @property
    def worst(self) -> tuple[str, str, Difference] | None:
        """The domain that lost most, in points; of equals the surer one, then the first by name."""
        return min(self.parts(), key=lambda part: _order(part[2], part[:2]), default=None)

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        worst = self.worst
        return {
            "name": self.name,
            "worst": worst and {"task": worst[0], "domain": worst[1], **worst[2].to_json()},
            "overall": self.pooled and self.pooled.to_json(),
            "mean_of_tasks": self.mean_of_tasks,
            "tasks": {name: task.to_json() for name, task in self.tasks.items()},
            "perplexity": {
                name: {**asdict(texts), "ratio": texts.ratio}
                for name, texts in self.perplexity.items()
            },
            "only_base": dict(self.joined.only_base),
            "only_variant": dict(self.joined.only_variant),
        }


def compare_variant(
    variant: Run, joined: Joined, *, metrics: Mapping[str, str | None], level: float
) -> VariantComparison:
    """Everything of one variant, uncorrected.

    Args:
        variant: the run.
        joined: it and the base, side by side.
        metrics: task -> what is compared; None: ``correct``.
        level: confidence of the intervals.
    """
    tasks: dict[str, TaskComparison] = {}
    tables = []
    perplexity: dict[str, PairedPerplexity] = {}
    for name, pairs in joined.pairs.items():
        table = scores(pairs, metrics.get(name))
        overall = difference(*table, level=level)
        if overall is not None:
            kind = str(variant.tasks[name].get("kind", ""))
            tasks[name] = _task(pairs, overall, kind=kind, metric=metrics.get(name), level=level)
            tables += [table] if tasks[name].is_accuracy else []
        texts = _perplexity(pairs, level)
        if texts is not None:
            perplexity[name] = texts
    return VariantComparison(
        name=variant.name,
        tasks=tasks,
        pooled=_pooled(tables, level),
        perplexity=perplexity,
        joined=joined,
    )


def _task(
    pairs: Sequence[Pair], overall: Difference, *, kind: str, metric: str | None, level: float
) -> TaskComparison:
    domains = _groups(pairs, metric, level, overall.scale, lambda pair: pair[0].domain)
    seeds = _groups(pairs, metric, level, overall.scale, lambda pair: pair[0].seed)
    return TaskComparison(
        kind=kind,
        metric=metric,
        overall=overall,
        domains=dict(sorted(domains.items(), key=lambda item: _order(item[1], (item[0],)))),
        by_seed=dict(sorted(seeds.items())) if overall.seeds > 1 else {},
        writing=writing(pairs, level=level),
    )


def _groups(
    pairs: Sequence[Pair], metric: str | None, level: float, scale: float, of: Any
) -> dict[Any, Difference]:
    groups: dict[Any, list[Pair]] = {}
    for pair in pairs:
        groups.setdefault(of(pair), []).append(pair)
    found = {
        name: difference(*scores(group, metric), level=level, scale=scale)
        for name, group in groups.items()
    }
    return {name: part for name, part in found.items() if part is not None}


def _pooled(tables: Sequence[tuple[Any, Any]], level: float) -> Difference | None:
    """All tasks as one; where their seeds differ in number, each question's mean over its seeds."""
    if not tables:
        return None
    if len({base_NS.shape[1] for base_NS, _ in tables}) > 1:
        tables = [
            tuple(side_NS.mean(axis=1, keepdims=True) for side_NS in table) for table in tables
        ]
    sides = (np.concatenate([table[side] for table in tables]) for side in (0, 1))
    return difference(*sides, level=level, scale=100)


def _perplexity(pairs: Sequence[Pair], level: float) -> PairedPerplexity | None:
    """Of the texts that both runs scored, a token or, where those were not counted, a byte."""
    scored = [
        (one.details, other.details)
        for one, other in pairs
        if all(type(sample.details.get("nll")) in (int, float) for sample in (one, other))
    ]
    for unit in ("tokens", "bytes", "words"):
        if scored and all(
            type(one.get(unit)) is int and one[unit] > 0 and one[unit] == other.get(unit)
            for one, other in scored
        ):
            return paired_perplexity(
                [one["nll"] for one, _ in scored],
                [other["nll"] for _, other in scored],
                tokens_W=[one[unit] for one, _ in scored],
                level=level,
            )
    return None


def _order(part: Difference, names: Sequence[str]) -> tuple[float, float, Sequence[str]]:
    return part.points, part.p, names
