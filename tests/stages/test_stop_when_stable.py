"""Reading until a plan is stable: what is measured is exactly the documents that were read."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import moeprune
from moeprune.core.choice import jaccard, real_LE
from moeprune.core.folds import SPLITS
from moeprune.core.stats import CalibrationStats
from moeprune.errors import StoppedError, UsageError
from moeprune.observe.rounds import rounds


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("texts")
    random = np.random.default_rng(0)
    found = {}
    for name, documents, words in (("code", 40, "def if x y = ( )"), ("散文", 21, "ab cd efg")):
        choice = words.split()
        rows = [" ".join(random.choice(choice, 20)) for _ in range(documents)]
        path = folder / f"{name}.txt"
        path.write_text("\f".join(rows), encoding="utf-8")
        found[name] = str(path)
    return found


def run(model: Path, texts: dict[str, str], output: Path | None = None, **options: Any) -> Any:
    return moeprune.calibrate(model, domains=texts, output=output, device="cpu", **options)


def curve_of(stats: CalibrationStats) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = stats.provenance["stable"]["curve"]
    return found


def test_it_stops_after_two_stable_rounds(tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    stats = run(tiny("qwen3_moe"), texts, tmp_path / "s", stop_when_stable=0.3)
    curve = curve_of(stats)
    overlaps = [at["agree"][at["method"]] for at in curve]
    pairs = [None not in pair and min(pair) >= 0.3 for pair in itertools.pairwise(overlaps)]
    assert pairs == [False] * (len(pairs) - 1) + [True]
    assert [at["enough"] for at in curve] == [False, *pairs]
    assert len(curve) < 10
    assert [domain.read for domain in stats.domains] == [4 * len(curve), 4 * len(curve)]
    assert CalibrationStats.load(tmp_path / "s").domains[0].read == 4 * len(curve)
    # The numbers of the last round are those of the stats.
    assert curve[-1]["tokens"] == sum(domain.num_tokens() for domain in stats.domains)
    plan = moeprune.plan(stats, method=curve[-1]["method"], ratio=0.25)
    assert plan.stability["jaccard"] == curve[-1]["agree"][curve[-1]["method"]]
    real = real_LE(stats.model.num_experts)
    halves = [[real & ~kept(stats, curve[-1]["method"], half) for half in both] for both in SPLITS]
    assert np.mean([jaccard(*pair) for pair in halves]) == pytest.approx(overlaps[-1])
    counts = sum(domain.total("count") for domain in stats.domains)
    assert curve[-1]["tokens_per_expert"]["least"] == counts[real].min()
    assert curve[-1]["tokens_per_expert"]["median"] == int(np.median(counts[real]))
    assert curve[-1]["unseen"] == np.count_nonzero(counts[real] == 0)


def kept(stats: CalibrationStats, method: str, half: tuple[int, int]) -> Any:
    """A plan from some folds alone, by leaving the others out of the stats."""
    domains = []
    for domain in stats.domains:
        arrays = {name: array.copy() for name, array in domain.arrays.items()}
        for array in arrays.values():
            array[[fold for fold in range(4) if fold not in half]] = 0
        domains.append(replace(domain, arrays=arrays))
    plan = moeprune.plan(replace(stats, domains=tuple(domains)), method=method, ratio=0.25)
    keep_LE = np.zeros((stats.model.num_layers, stats.model.width), bool)
    for row, keep in enumerate(plan.keep):
        keep_LE[row, list(keep)] = True
    return keep_LE


def test_all_of_the_text_in_rounds_is_all_of_the_text(tiny: Any, texts: dict[str, str]) -> None:
    found = run(tiny("qwen3_moe"), texts, stop_when_stable=1.0)
    want = run(tiny("qwen3_moe"), texts)
    assert not curve_of(found)[-1]["enough"]
    for mine, theirs in zip(found.domains, want.domains, strict=True):
        assert (mine.read, mine.documents) == (None, theirs.documents)
        for name, array in theirs.arrays.items():
            np.testing.assert_allclose(mine.arrays[name], array, rtol=1e-5)
            if name in ("tokens", "count"):
                assert (mine.arrays[name] == array).all()


def test_what_is_measured_is_what_was_read(tiny: Any, texts: dict[str, str]) -> None:
    """The same as measuring those documents alone, with their numbers."""
    from moeprune.observe.domains import read_corpus
    from moeprune.observe.load import load_causal_lm, load_tokenizer
    from moeprune.observe.prefill import prefill
    from moeprune.stages.identify import open_model

    path = tiny("qwen3_moe")
    stats = run(path, {"code": texts["code"]}, stop_when_stable=0.2, seed=3)
    assert stats.domains[0].read is not None
    corpus = read_corpus(
        "code", texts["code"], tokenizer=load_tokenizer(path), length=2048, samples=None, seed=3
    )
    order = np.random.RandomState(3).permutation(40)[: stats.domains[0].read].tolist()
    part = replace(
        corpus, numbers=tuple(order), documents=tuple(corpus.documents[row] for row in order)
    )
    want = prefill(
        load_causal_lm(path, device="cpu"),
        part,
        layout=open_model(path).layout,
        batch_tokens=100,
    )
    assert (stats.domains[0].arrays["count"] == want["count"]).all()
    np.testing.assert_allclose(
        stats.domains[0].arrays["gate_norm_sum"], want["gate_norm_sum"], rtol=1e-5
    )


def test_stopped_and_resumed(tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    how: dict[str, Any] = {"stop_when_stable": 0.3, "batch_tokens": 100}
    run(tiny("qwen3_moe"), texts, tmp_path / "whole", **how)
    stops = 0
    while not (tmp_path / "s").exists():
        try:
            run(tiny("qwen3_moe"), texts, tmp_path / "s", stop=lambda: True, **how)
        except StoppedError:
            stops += 1
    assert stops > 4
    assert (tmp_path / "s").read_bytes() == (tmp_path / "whole").read_bytes()


@pytest.mark.parametrize("total", [0, 1, 3, 4, 5, 64, 65, 1000])
def test_rounds_hold_every_document_once(total: int) -> None:
    from moeprune.observe.domains import Corpus

    corpora = [
        Corpus(
            name=name,
            source="s",
            sha256="",
            total=number,
            numbers=tuple(range(number)),
            documents=tuple(np.full(3, row, np.int32) for row in range(number)),
        )
        for name, number in (("a", total), ("b", 7))
    ]
    parts = [part for each in rounds(corpora, 5) for part in each]
    for corpus in corpora:
        mine = [part for part in parts if part.name == corpus.name]
        assert sorted(n for part in mine for n in part.numbers) == list(corpus.numbers)
        assert all(
            (ids == number).all()
            for part in mine
            for number, ids in zip(part.numbers, part.documents, strict=True)
        )
        assert 1 <= len(mine) <= 16
    assert rounds(corpora, 5)[0][0].numbers == rounds(corpora, 5)[0][0].numbers
    if total > 20:
        assert rounds(corpora, 5)[0][0].numbers != rounds(corpora, 6)[0][0].numbers


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"stop_when_stable": 0.0}, "more than 0, at most 1"),
        ({"stop_when_stable": float("nan")}, "more than 0, at most 1"),
        ({"stop_when_stable": 1.5}, "more than 0, at most 1"),
        ({"stop_when_stable": 0.9, "shard": (0, 2)}, "--shard is a part"),
        ({"stop_when_stable": 0.9, "mode": "decode"}, "Give fewer --samples"),
    ],
    ids=str,
)
def test_words_that_do_not_go_together(
    options: dict[str, Any], words: str, tiny: Any, texts: dict[str, str]
) -> None:
    with pytest.raises(UsageError, match=words):
        run(tiny("qwen3_moe"), texts, **options)


def test_stats_of_other_domains_can_be_added(tiny: Any, texts: dict[str, str]) -> None:
    from moeprune.core.merging import merge

    parts = [
        run(tiny("qwen3_moe"), {name: path}, stop_when_stable=0.2) for name, path in texts.items()
    ]
    merged = merge(parts)
    assert [d.read for d in merged.domains] == [part.domains[0].read for part in parts]
    assert "stable" not in merged.provenance


def test_a_domain_that_has_no_halves(tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    """All of the text would be read, and nothing ever compared."""
    one = tmp_path / "one.jsonl"
    one.write_text('{"text": "a b c"}\n')
    with pytest.raises(UsageError, match=r"domain 'one' has a single document\. Give it more"):
        run(tiny("qwen3_moe"), {**texts, "one": str(one)}, stop_when_stable=0.5)


def test_the_curve_is_plain_numbers(tiny: Any, texts: dict[str, str]) -> None:
    for at in curve_of(run(tiny("qwen3_moe"), texts, stop_when_stable=0.3)):
        assert {type(value) for value in at["agree"].values()} <= {float, type(None)}
