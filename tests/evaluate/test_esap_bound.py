"""Giving up early is never wrong, and the order of batches never changes a value."""

from __future__ import annotations

import random
from statistics import mean

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.evaluate.bound import MEAN, OBJECTIVES, WORST, Ledger, race

# Batches of a domain: tokens, each with the mass kept for it and the share of it that is accepted.
token = st.tuples(st.floats(0.9, 1.0), st.floats(0.0, 1.0))
batch = st.lists(token, min_size=1, max_size=5)
domains = st.lists(st.lists(batch, min_size=1, max_size=4), min_size=1, max_size=4)

Domains = list[list[list[tuple[float, float]]]]


def ledger_of(text: Domains, objective: str) -> tuple[Ledger, list[float]]:
    """The ledger and what each batch gives when it runs."""
    flat = [(number, tokens) for number, batches in enumerate(text) for tokens in batches]
    ledger = Ledger(
        domain_B=tuple(number for number, _ in flat),
        mass_B=tuple(sum(mass for mass, _ in tokens) for _, tokens in flat),
        tokens_D=tuple(sum(len(tokens) for tokens in batches) for batches in text),
        objective=objective,
    )
    return ledger, [sum(mass * share for mass, share in tokens) for _, tokens in flat]


def plain_value(text: Domains, objective: str) -> float:
    means = [mean(mass * share for tokens in batches for mass, share in tokens) for batches in text]
    return min(means) if objective == WORST else mean(means)


@given(
    text=domains,
    objective=st.sampled_from(sorted(OBJECTIVES)),
    at_least=st.floats(-0.1, 1.1),
    seed=st.integers(0, 999),
)
def test_what_is_given_up_is_below(
    text: Domains, objective: str, at_least: float, seed: int
) -> None:
    ledger, given_B = ledger_of(text, objective)
    order = list(range(len(given_B)))
    random.Random(seed).shuffle(order)
    ran: list[int] = []

    def run(batch: int) -> float:
        ran.append(batch)
        return given_B[batch]

    known: dict[int, float] = {}
    value = race(ledger, known, order=order, run=run, at_least=at_least)
    true = plain_value(text, objective)
    assert ran == order[: len(ran)] and known == {b: given_B[b] for b in ran}
    if value is None:
        assert true < at_least
        # Finishing later gives what never stopping gives, without running anything twice.
        value = race(ledger, known, order=order, run=run, at_least=-1)
    assert sorted(ran) == sorted(order)
    assert value == pytest.approx(true, abs=1e-12)
    assert value == ledger.value(given_B)  # to the last bit, whatever the order


@given(text=domains, objective=st.sampled_from(sorted(OBJECTIVES)))
def test_an_equal_genome_is_never_given_up(text: Domains, objective: str) -> None:
    ledger, given_B = ledger_of(text, objective)
    value = ledger.value(given_B)
    order = ledger.order(given_B)
    assert sorted(order) == list(range(len(given_B)))
    found = race(ledger, {}, order=order, run=given_B.__getitem__, at_least=value)
    assert found == value


@given(text=domains, objective=st.sampled_from(sorted(OBJECTIVES)), data=st.data())
def test_the_bound_falls_as_batches_run(text: Domains, objective: str, data: st.DataObject) -> None:
    ledger, given_B = ledger_of(text, objective)
    known: dict[int, float] = {}
    before = ledger.upper(known)
    for each in data.draw(st.permutations(range(len(given_B)))):
        known[each] = given_B[each]
        after = ledger.upper(known)
        assert ledger.value(given_B) <= after + 1e-12 <= before + 2e-12
        before = after


def runs(objective: str, losses: list[list[float]], at_least: float) -> list[int]:
    """Batches that run of a genome that loses so much of every batch's ten tokens."""
    flat = [(number, loss) for number, batches in enumerate(losses) for loss in batches]
    ledger = Ledger(
        domain_B=tuple(number for number, _ in flat),
        mass_B=tuple(10.0 for _ in flat),
        tokens_D=tuple(10 * len(batches) for batches in losses),
        objective=objective,
    )
    given_B = [10 * (1 - loss) for _, loss in flat]
    ran: list[int] = []

    def run(batch: int) -> float:
        ran.append(batch)
        return given_B[batch]

    race(ledger, {}, order=ledger.order(given_B), run=run, at_least=at_least)
    return ran


def test_batches_that_lose_most_run_first() -> None:
    # The mean is 0.75; after losses of 0.6 and 0.5 of four batches it is at most 0.85 or 0.725.
    losses = [[0.1, 0.5], [0.6, -0.2]]
    assert runs(MEAN, losses, at_least=0.8) == [2, 1]
    assert runs(MEAN, losses, at_least=0.7) == [2, 1, 0, 3]


def test_one_bad_domain_is_enough() -> None:
    losses = [[0.1, 0.1, 0.1], [0.3, 0.5], [0.2, 0.2]]
    assert runs(WORST, losses, at_least=0.8) == [4]
    assert runs(WORST, losses, at_least=0.7) == [4, 3]
    assert runs(WORST, losses, at_least=0.6)[:2] == [4, 3]
    assert len(runs(WORST, losses, at_least=0.6)) == 7
