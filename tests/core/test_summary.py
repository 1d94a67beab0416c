"""The figures of a run, against numbers worked out by hand and by brute force."""

import json
import math
import random

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune.core.run import Run
from moeprune.core.sample import Sample
from moeprune.core.summary import Figures, Lengths, Perplexity, TaskSummary, summarise


def test_seeds_are_means_within_a_question_first() -> None:
    rows = [
        Sample(task="t", domain="a", id="1", seed=0, correct=True, metrics={"acc": 1}),
        Sample(task="t", domain="a", id="1", seed=1, correct=False, metrics={"acc": 0}),
        Sample(task="t", domain="a", id="1", seed=2, correct=False, metrics={"acc": 0}),
        Sample(task="t", domain="a", id="2", seed=0, correct=True, metrics={"acc": 1, "x": 5}),
    ]
    found = Figures.of(rows)
    assert (found.questions, found.answers) == (2, 4)
    assert found.accuracy == pytest.approx((1 / 3 + 1) / 2)
    assert found.metrics == {"acc": pytest.approx((1 / 3 + 1) / 2), "x": 5}
    assert found.lengths is None and found.truncated is None and found.perplexity is None
    assert found.unanswered == 1  # no prediction anywhere
    assert found.loops is None


def test_written_answers_have_lengths_and_others_have_none() -> None:
    rows = [
        Sample(
            task="t",
            domain="d",
            id=str(number),
            truncated=number >= 98,
            tokens=number,
            correct=True,
            prediction=None if number % 4 == 0 else "x",
            metrics={"loop": float(number % 10 == 0)},
        )
        for number in range(1, 101)
    ]
    found = Figures.of([*rows, Sample(task="t", domain="d", id="letters", tokens=9**9)])
    assert found.lengths == Lengths(p50=50, p99=99, max=100, mean=50.5)
    assert found.truncated == pytest.approx(3 / 100)
    assert found.unanswered == pytest.approx(25 / 100)
    assert found.loops == pytest.approx(10 / 100)


@given(st.lists(st.integers(0, 4000), min_size=1, max_size=300))
def test_percentiles_are_those_of_numpy(lengths: list[int]) -> None:
    found = Lengths.of(lengths)
    assert found is not None
    for percent, value in ((50, found.p50), (99, found.p99)):
        assert value == np.percentile(lengths, percent, method="inverted_cdf")


def test_perplexity_is_of_sums_not_a_mean_of_perplexities() -> None:
    rows = [
        Sample(
            task="wiki",
            domain="w",
            id="1",
            details={"nll": 10, "tokens": 4, "bytes": 9, "words": 2},
        ),
        Sample(
            task="wiki",
            domain="w",
            id="2",
            details={"nll": 2.0, "tokens": 8, "bytes": 31, "words": 6},
        ),
        Sample(task="wiki", domain="w", id="3", details={"other": 1}),
    ]
    found = Perplexity.of(rows)
    assert found is not None
    assert found.per_token == pytest.approx(math.e)
    assert found.bits_per_byte == pytest.approx(12 / 40 / math.log(2))
    assert found.per_word == pytest.approx(math.exp(1.5))
    assert found.to_json() == {
        **{"nll": 12, "tokens": 12, "bytes": 40, "words": 8},
        "per_token": pytest.approx(math.e),
        "bits_per_byte": pytest.approx(12 / 40 / math.log(2)),
        "per_word": pytest.approx(math.exp(1.5)),
    }
    bare = Perplexity.of([Sample(task="w", domain="w", id="1", details={"nll": 5000, "tokens": 2})])
    assert bare is not None  # exp(2500) is no float
    assert (bare.bits_per_byte, bare.per_word, bare.per_token) == (None, None, None)
    half = [
        Sample(task="w", domain="w", id="1", details={"nll": 1.5, "words": 3, "bytes": 8}),
        Sample(task="w", domain="w", id="2", details={"nll": 1.5, "words": 3, "bytes": "8"}),
    ]
    assert Perplexity.of(half) == Perplexity(nll=3, words=6)
    assert Perplexity.of([Sample(task="w", domain="w", id="1", details={"nll": True})]) is None


def test_the_worst_domain_is_named() -> None:
    rights = {"algebra": (1, 0), "law": (0, 0, 1), "anatomy": (1, 1), "zoology": (0, 1, 0)}
    rows = [
        Sample(task="t", domain=domain, id=f"{domain}{place}", correct=bool(right))
        for domain, flags in rights.items()
        for place, right in enumerate(flags)
    ]
    found = TaskSummary.of(rows)
    assert found.worst_domain == "law"  # as low as zoology, and first by name
    assert list(found.domains) == list(rights)
    assert found.domains["law"].accuracy == pytest.approx(1 / 3)
    assert found.overall.accuracy == pytest.approx(5 / 10)
    texts = [
        Sample(task="w", domain=domain, id=domain, details={"nll": nll, "tokens": 9, "bytes": size})
        for domain, nll, size in (("code", 9, 10), ("law", 8, 4), ("math", 8, 5))
    ]
    assert TaskSummary.of(texts).worst_domain == "law"
    assert TaskSummary.of([Sample(task="w", domain="d", id="1")]).worst_domain is None


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 10**9))
def test_it_equals_brute_force_in_any_order(seed: int) -> None:
    draw = random.Random(seed)
    rows = [
        Sample(
            task=draw.choice("ab"),
            domain=draw.choice(("x", "y")),
            id=str(number // 3),
            seed=number,
            correct=draw.choice((True, False, None)),
            metrics={"m": draw.random()} if draw.random() < 0.7 else {},
            truncated=draw.choice((True, False, None)),
            tokens=draw.randrange(50),
        )
        for number in range(draw.randint(1, 40))
    ]
    run = Run(name="r", tasks={"b": {}, "a": {}, "none": {}}, samples=tuple(rows))
    found = summarise(run)
    assert list(found) == [name for name in "ba" if any(row.task == name for row in rows)]
    for name, summary in found.items():
        own = [row for row in rows if row.task == name]
        ids = sorted({row.id for row in own if row.correct is not None})
        means = [
            np.mean([row.correct for row in own if row.id == id_ and row.correct is not None])
            for id_ in ids
        ]
        if means:
            assert summary.overall.accuracy == pytest.approx(np.mean(means))
        else:
            assert summary.overall.accuracy is None
        ids = sorted({row.id for row in own if row.metrics})
        metric = [
            np.mean([row.metrics["m"] for row in own if row.id == i and row.metrics]) for i in ids
        ]
        if metric:
            assert summary.overall.metrics["m"] == pytest.approx(np.mean(metric))
        written = [row for row in own if row.truncated is not None]
        if written:
            share = np.mean([row.truncated for row in written])
            assert summary.overall.truncated == pytest.approx(share)
        assert sum(part.answers for part in summary.domains.values()) == len(own)
    shuffled = Run(name="r", tasks=run.tasks, samples=tuple(draw.sample(rows, len(rows))))
    again = {name: summary.to_json() for name, summary in summarise(shuffled).items()}
    text = json.dumps(again, sort_keys=True, allow_nan=False)
    first = {name: summary.to_json() for name, summary in found.items()}
    assert text == json.dumps(first, sort_keys=True)
