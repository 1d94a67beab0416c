"""The figures of a run: per task and per domain, with the worst domain named.

Several seeds are repeated measures of one question: first the mean over the seeds of a question,
then the mean over questions, so that a question asked more often does not count for more.

What it reads of an answer (``core/sample.py``): ``correct``, ``metrics`` (``loop``: 1 where a
written answer fell into a repetition), ``truncated`` and ``tokens`` where something was written,
and, of perplexity, ``details``: ``nll`` (nats), ``tokens``, ``bytes``, ``words``.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from moeprune.core.run import Run
from moeprune.core.sample import Sample

LOOP = "loop"  # the metric of an answer that repeats itself


@dataclass(frozen=True, slots=True, kw_only=True)
class Lengths:
    """Tokens of written answers; percentiles are the lengths of real answers (nearest rank)."""

    p50: int
    p99: int
    max: int
    mean: float

    @classmethod
    def of(cls, lengths: Iterable[int]) -> Lengths | None:
        """Of these answers; None where there is none."""
        ordered = sorted(lengths)
        if not ordered:
            return None
        return cls(
            p50=_nearest(ordered, 50),
            p99=_nearest(ordered, 99),
            max=ordered[-1],
            mean=sum(ordered) / len(ordered),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class Perplexity:
    """Of texts, from sums over all of them.

    Attributes:
        nll: Σ of the negative log-likelihoods, nats.
        tokens: that were predicted; None where they were not counted.
        bytes: of the texts, UTF-8; None likewise.
        words: of the texts; None likewise.
    """

    nll: float
    tokens: int | None = None
    bytes: int | None = None
    words: int | None = None

    @property
    def per_token(self) -> float | None:
        """exp(Σ nll / Σ tokens); None where it is not known or no finite number."""
        return _exp(self.nll / self.tokens) if self.tokens else None

    @property
    def per_word(self) -> float | None:
        """exp(Σ nll / Σ words), as lm-eval's word_perplexity."""
        return _exp(self.nll / self.words) if self.words else None

    @property
    def bits_per_byte(self) -> float | None:
        """Σ nll / (ln 2 · Σ bytes), which models of other tokenizers share."""
        return self.nll / math.log(2) / self.bytes if self.bytes else None

    @property
    def badness(self) -> float:
        """What tells the worse of two groups of texts: bits per byte, or nats per token, or nll."""
        return self.nll / (self.bytes or self.tokens or 1)

    @classmethod
    def of(cls, samples: Iterable[Sample]) -> Perplexity | None:
        """Of the answers that hold ``nll``; None where none does."""
        held = [sample.details for sample in samples if _is_number(sample.details.get("nll"))]
        if not held:
            return None
        return cls(
            nll=math.fsum(details["nll"] for details in held),
            **{name: _sum(held, name) for name in ("tokens", "bytes", "words")},
        )

    def to_json(self) -> dict[str, Any]:
        """As plain types, with the quotients."""
        return {
            **asdict(self),
            "per_token": self.per_token,
            "per_word": self.per_word,
            "bits_per_byte": self.bits_per_byte,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Figures:
    """Of a group of answers.

    Attributes:
        questions: different ones.
        answers: questions times seeds.
        accuracy: mean over questions of the mean over seeds of ``correct``; None without any.
        metrics: name -> mean, of the same kind, over the questions that have the metric.
        truncated: share of the written answers that used up their budget; None: nothing written.
        lengths: of the written answers.
        unanswered: share of the answers with a right and wrong of which no prediction was read.
        loops: share of the questions whose answer fell into a repetition; None: not looked for.
        perplexity: of texts.
    """

    questions: int
    answers: int
    accuracy: float | None = None
    metrics: Mapping[str, float] = field(default_factory=dict)
    truncated: float | None = None
    lengths: Lengths | None = None
    unanswered: float | None = None
    loops: float | None = None
    perplexity: Perplexity | None = None

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> Figures:
        """Of these answers, in whatever order; a question is told by its task and id."""
        written = [sample for sample in samples if sample.truncated is not None]
        judged = [sample for sample in samples if sample.correct is not None]
        names = sorted({name for sample in samples for name in sample.metrics})
        metrics = {
            name: _mean_over_questions((s, s.metrics[name]) for s in samples if name in s.metrics)
            for name in names
        }
        return cls(
            questions=len({(sample.task, sample.id) for sample in samples}),
            answers=len(samples),
            accuracy=_mean_over_questions((s, bool(s.correct)) for s in judged) if judged else None,
            metrics=metrics,
            truncated=_share(sample.truncated is True for sample in written),
            lengths=Lengths.of(sample.tokens for sample in written),
            unanswered=_share(sample.prediction is None for sample in judged),
            loops=metrics.get(LOOP),
            perplexity=Perplexity.of(samples),
        )

    def to_json(self) -> dict[str, Any]:
        """As plain types."""
        perplexity = self.perplexity.to_json() if self.perplexity else None
        return {**asdict(self), "metrics": dict(self.metrics), "perplexity": perplexity}


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskSummary:
    """Of one task: all of it, and its domains in the order of their first question.

    Attributes:
        overall: of all answers.
        domains: name -> figures.
        worst_domain: the one with the lowest accuracy (the first of equals by name), or, where
            there is no right and wrong, with the highest bits per byte or nats per token; None
            where nothing orders them.
    """

    overall: Figures
    domains: Mapping[str, Figures]
    worst_domain: str | None

    @classmethod
    def of(cls, samples: Sequence[Sample]) -> TaskSummary:
        """Of the answers of one task."""
        groups: dict[str, list[Sample]] = {}
        for sample in samples:
            groups.setdefault(sample.domain, []).append(sample)
        domains = {name: Figures.of(group) for name, group in groups.items()}
        ordered = {name: _badness(figures) for name, figures in domains.items()}
        known = {name: badness for name, badness in ordered.items() if badness is not None}
        worst = min(known, key=lambda name: (-known[name], name)) if known else None
        return cls(overall=Figures.of(samples), domains=domains, worst_domain=worst)

    def to_json(self) -> dict[str, Any]:
        """As plain types; what ``run.json`` holds as the summary of a task."""
        return {
            **self.overall.to_json(),
            "domains": {name: figures.to_json() for name, figures in self.domains.items()},
            "worst_domain": self.worst_domain,
        }


def summarise(run: Run) -> dict[str, TaskSummary]:
    """The figures of every task that was answered, in the order of the run's tasks."""
    groups: dict[str, list[Sample]] = {name: [] for name in run.tasks}
    for sample in run.samples:
        groups.setdefault(sample.task, []).append(sample)
    return {name: TaskSummary.of(group) for name, group in groups.items() if group}


def _badness(figures: Figures) -> float | None:
    if figures.accuracy is not None:
        return -figures.accuracy
    return figures.perplexity.badness if figures.perplexity else None


def _mean_over_questions(values: Iterable[tuple[Sample, float]]) -> float:
    groups: dict[tuple[str, str], list[float]] = {}
    for sample, value in values:
        groups.setdefault((sample.task, sample.id), []).append(value)
    means = [math.fsum(group) / len(group) for group in groups.values()]
    return math.fsum(means) / len(means)


def _share(flags: Iterable[bool]) -> float | None:
    listed = list(flags)
    return sum(listed) / len(listed) if listed else None


def _nearest(ordered: Sequence[int], percent: int) -> int:
    """The smallest value that ``percent`` of all do not exceed."""
    return ordered[max(0, -(-percent * len(ordered) // 100) - 1)]


def _sum(held: Iterable[Mapping[str, Any]], name: str) -> int | None:
    """Of one key; None where an answer lacks it."""
    values = [details.get(name) for details in held]
    if not all(_is_number(value) for value in values):
        return None
    return sum(int(value) for value in values if value is not None)


def _is_number(value: object) -> bool:
    return type(value) in (int, float)


def _exp(value: float) -> float | None:
    try:
        return math.exp(value)
    except OverflowError:
        return None
