"""ESAP of real models against the slow way, with and without every saving."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from esap_setup import TEXT, Subject, batch_of, documents
from tiny import FAMILIES, tiny_checkpoint

from moeprune.core.fitness import Counts
from moeprune.errors import DomainError, UsageError, VerificationError
from moeprune.evaluate.esap import Esap

Subjects = Callable[[str], Subject]


@pytest.fixture(scope="module")
def subjects(tiny: Any) -> Subjects:
    made: dict[str, Subject] = {}

    def get(family: str) -> Subject:
        if family not in made:
            made[family] = Subject(tiny(family))
        return made[family]

    return get


def walk(subject: Subject, steps: int) -> list[Counts]:
    """Genomes, each of which differs from one before it in one row or two; every row changes."""
    generator = random.Random(0)
    groups = subject.layout.num_groups
    rows = range(len(subject.order))
    found = [subject.genome(1)]
    while len(found) < steps:
        counts = list(generator.choice(found))
        for row in (rows[-1 - len(found) % len(rows)], generator.choice(rows)):
            counts[row] = generator.randint(0, len(subject.order[row]) // groups) * groups
        found.append(tuple(counts))
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("objective", ["mean", "worst-domain"])
def test_equals_one_token_at_a_time_over_the_whole_vocabulary(
    family: str, objective: str, subjects: Subjects
) -> None:
    subject = subjects(family)
    esap = subject.esap(objective=objective, top_p=1.0)
    assert esap.report.reuse and esap.report.in_parts and esap.report.reason == ""
    for counts in (subject.genome(0), subject.genome(1, 2), subject.genome(1, 1, 2, 0)):
        assert esap.score(counts) == pytest.approx(
            subject.slow(counts, objective=objective), abs=1e-6
        )
    assert 0.3 < subject.slow(subject.genome(2)) < 0.999  # removing experts matters


@pytest.mark.parametrize("family", FAMILIES)
def test_every_saving_changes_no_bit(family: str, subjects: Subjects) -> None:
    subject = subjects(family)
    plain = subject.esap(reuse=False)
    esap = subject.esap()
    genomes = walk(subject, 8)
    parents = [None, *genomes[:-1]]
    for counts, parent in zip(genomes, parents, strict=True):
        assert esap.score(counts, parent=parent) == plain.score(counts)
    asked = len(set(genomes)) * 5 * len(esap._passes.replay.layers)
    assert plain.layer_forwards == plain.layer_forwards_naive == asked
    assert esap.layer_forwards < esap.layer_forwards_naive == asked
    # Little memory, or none: more is computed, the same comes out.
    before = esap.layer_forwards
    for cache_bytes in (20_000, 0):
        small = subject.esap(cache_bytes=cache_bytes)
        assert [small.score(counts) for counts in genomes] == [esap.score(c) for c in genomes]
        assert small.cache.most <= cache_bytes
        assert before <= small.layer_forwards <= asked
    assert small.layer_forwards == asked


@pytest.mark.parametrize("family", ["qwen3_moe", "granitemoe", "llama4_text"])
def test_logits_in_parts_give_the_same(family: str, subjects: Subjects) -> None:
    subject = subjects(family)
    whole = subject.esap(top_p=1.0)
    parts = subject.esap(top_p=1.0, logits_bytes=1)  # one position at a time
    for counts in (subject.genome(0), subject.genome(2, 1)):
        assert parts.score(counts) == pytest.approx(whole.score(counts), abs=1e-6)
    assert parts.layer_forwards == whole.layer_forwards
    # Of every position one part, of which the reference keeps every token's probability.
    assert [len(kept) for kept in parts._kept] == [19, 7, 6, 9, 11]
    assert [len(kept) for kept in whole._kept] == [1, 1, 1, 1, 1]


@pytest.mark.parametrize("top_p", [0.5, 0.9, 0.999])
def test_what_top_p_drops_is_what_is_missing(top_p: float, subjects: Subjects) -> None:
    subject = subjects("qwen3_moe")
    esap = subject.esap(top_p=top_p)
    full = esap.by_domain(subject.genome(0))
    assert list(full) == list(esap.report.dropped) == ["long", "short", "other"]
    for name, dropped in esap.report.dropped.items():
        assert 0 < dropped <= 1 - top_p
        assert full[name] == pytest.approx(1 - dropped, abs=1e-12)
    counts = subject.genome(2, 1)
    found, true = esap.score(counts), subject.slow(counts)
    assert found is not None
    assert true - np.mean(list(esap.report.dropped.values())) - 1e-6 <= found <= true + 1e-6
    assert esap.report.tokens == {"long": 39, "short": 12, "other": 23}
    assert esap.report.reference_bytes < subject.esap(top_p=1.0).report.reference_bytes


def test_of_the_full_model_is_one(subjects: Subjects) -> None:
    for family in FAMILIES:
        subject = subjects(family)
        for objective in ("mean", "worst-domain"):
            esap = subject.esap(top_p=1.0, objective=objective)
            assert esap.score(subject.genome(0)) == pytest.approx(1, abs=1e-6)


def test_padding_counts_for_nothing(subjects: Subjects) -> None:
    subject = subjects("qwen3_moe")
    counts = subject.genome(2)
    one_by_one = {name: [[ids] for b in text for ids in b] for name, text in TEXT.items()}
    alone = {name: [batch_of(batch) for batch in text] for name, text in one_by_one.items()}
    esap, bare = subject.esap(top_p=1.0), subject.esap(top_p=1.0, batches=alone)
    assert esap.score(counts) == pytest.approx(bare.score(counts), abs=1e-6)
    other = {name: [batch_of(b, filler=77) for b in text] for name, text in TEXT.items()}
    filled = subject.esap(top_p=1.0, batches=other)
    assert filled.score(counts) == pytest.approx(esap.score(counts), abs=1e-6)


def test_layers_run_are_those_from_the_first_changed_one(subjects: Subjects) -> None:
    """Qwen3-MoE: layers 0, 2 and 3 of 4 are MoE layers; every batch is worth the same."""
    subject = subjects("qwen3_moe")
    esap = subject.esap()
    batches, depth = 5, 4
    naive = 0
    for counts, layers in (
        ((2, 2, 2), depth),  # nothing is there yet
        ((2, 2, 3), 1),  # begins at layer 3
        ((2, 3, 2), 2),  # begins at layer 2
        ((3, 2, 2), depth),
        ((3, 2, 1), 1),
        ((2, 3, 4), 1),  # not like its parent, but like another genome, up to layer 3
        ((2, 2, 3), 0),  # known
    ):
        before = esap.layer_forwards
        esap.score(counts, parent=(2, 2, 2))
        assert esap.layer_forwards - before == layers * batches, counts
        naive += depth * batches * (layers > 0)
        assert esap.layer_forwards_naive == naive
    # Dense layers before the first MoE layer run once for all.
    deepseek = subjects("deepseek_v3").esap()
    for counts, layers in (((3, 3), 3), ((6, 3), 2), ((6, 6), 1)):
        before = deepseek.layer_forwards
        deepseek.score(counts)
        assert deepseek.layer_forwards - before == layers * batches


def test_retained_genomes_keep_their_states_others_make_room(subjects: Subjects) -> None:
    subject = subjects("qwen3_moe")
    esap = subject.esap()
    esap.score((2, 2, 2))
    one = esap.cache.nbytes  # the states of one genome
    # Layers 2 and 3 of four batches' 57 + 7 + 12 + 18 + 11 positions, 32 numbers of 4 bytes.
    assert one == 2 * (57 + 7 + 12 + 18 + 11) * 32 * 4
    esap = subject.esap(cache_bytes=2 * one)
    esap.score((2, 2, 2))
    esap.retain([(2, 2, 2)])
    for first in (0, 1, 3, 4, 5):
        esap.score((first, 2, 2))
        assert esap.cache.nbytes <= 2 * one
    before = esap.layer_forwards
    esap.score((2, 2, 5))
    assert esap.layer_forwards - before == 5
    esap.score((5, 2, 5))  # the last one before still has its states
    assert esap.layer_forwards - before == 10
    esap.score((0, 2, 5))  # the first one has not
    assert esap.layer_forwards - before == 30


@pytest.mark.parametrize("objective", ["mean", "worst-domain"])
def test_a_genome_that_cannot_reach_it_is_given_up(objective: str, subjects: Subjects) -> None:
    subject = subjects("gpt_oss")
    plain = subject.esap(objective=objective, reuse=False)
    esap = subject.esap(objective=objective)
    genomes = [subject.genome(a, b) for a, b in itertools.product(range(0, 9, 2), repeat=2)]
    true = {counts: plain.score(counts) for counts in genomes}
    esap.score(genomes[0])
    given_up = 0
    for counts in genomes:
        for at_least in (0.999, sorted(true.values())[len(true) // 2], true[counts]):
            found = esap.score(counts, at_least=at_least)
            given_up += found is None
            if found is None:
                assert true[counts] < at_least  # type: ignore[operator]
            else:
                assert found == true[counts]
    assert given_up > len(genomes) / 2
    assert esap.layer_forwards < plain.layer_forwards
    # Asked again without a bound, what was given up goes on where it stopped.
    assert {counts: esap.score(counts) for counts in genomes} == true


def test_equal_evaluators_give_equal_values_and_counts(tiny: Any) -> None:
    found = []
    for _ in range(2):
        subject = Subject(tiny("mixtral"))
        esap = subject.esap(cache_bytes=30_000)
        found.append(([esap.score(c) for c in walk(subject, 6)], esap.layer_forwards, esap.report))
    assert found[0] == found[1]


def test_the_model_is_left_as_it_was(tiny: Any) -> None:
    subject = Subject(tiny("deepseek_v3"))
    before = {name: tensor.clone() for name, tensor in subject.model.state_dict().items()}
    esap = subject.esap()
    esap.score(subject.genome(2))
    for name, tensor in subject.model.state_dict().items():
        assert (tensor == before[name]).all(), name
    assert all("forward" not in module.__dict__ for module in subject.model.modules())


def test_half_precision_costs_nothing_but_precision(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m")
    subject = Subject(path)
    exact = subject.esap(top_p=1.0).score(subject.genome(2, 1))
    subject.model = subject.model.bfloat16()
    esap, plain = subject.esap(), subject.esap(reuse=False)
    assert esap.report.reuse, esap.report.reason
    for counts in walk(subject, 5):
        assert esap.score(counts) == plain.score(counts)
    assert esap.score(subject.genome(2, 1)) == pytest.approx(exact, abs=0.02)


def test_wrong_input_is_refused(subjects: Subjects) -> None:
    subject = subjects("qwen3_moe")
    esap: Esap = subject.esap()
    for counts in ((1, 1), (1, 1, 1, 1), (1, 1, -1), (1, 1, 10)):
        with pytest.raises(UsageError, match="not numbers of experts"):
            esap.score(counts)
    for top_p in (0.0, -1.0, 1.5, float("nan")):
        with pytest.raises(UsageError, match="--top-p"):
            subject.esap(top_p=top_p)
    with pytest.raises(UsageError, match="--cache -1"):
        subject.esap(cache_bytes=-1)
    with pytest.raises(UsageError, match="objective"):
        subject.esap(objective="best")
    with pytest.raises(DomainError, match="at least one domain"):
        subject.esap(batches={})
    with pytest.raises(DomainError, match="'empty' has no held-out token"):
        subject.esap(batches={"empty": []})


def test_experts_that_cannot_be_masked_are_an_error(subjects: Subjects) -> None:
    subject = subjects("qwen3_moe")

    def masking(removed: Any) -> Any:
        from moeprune.routing.mask import masked_experts

        routers = [row.router for row in subject.rows]
        return masked_experts(subject.model, routers=routers, num_experts=[11] * 3, removed=removed)

    with pytest.raises(VerificationError, match="cannot be trusted"):
        subject.esap(masking=masking)
    assert all("forward" not in module.__dict__ for module in subject.model.modules())


def test_documents_are_ragged_in_every_way() -> None:
    sizes = {name: [[ids.size for ids in b] for b in text] for name, text in TEXT.items()}
    assert sizes == {"long": [[19, 12, 1], [7]], "short": [[6, 6]], "other": [[3, 9], [11]]}
    assert documents({"a": [[3]]})["a"][0][0].size == 3
