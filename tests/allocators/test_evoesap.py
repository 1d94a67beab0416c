"""The search against a plain transcription, and against itself interrupted anywhere."""

import json
import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from judges import Judge
from synthetic import facts

from moeprune.allocators import evoesap
from moeprune.allocators._evolution import Settings, children, starting
from moeprune.allocators._journal import Journal
from moeprune.allocators._mutation import mutated
from moeprune.allocators._patterns import PATTERNS, pattern, spread
from moeprune.allocators._space import Space
from moeprune.core.budget import Budget
from moeprune.core.choice import keep_highest, leaving_orders
from moeprune.core.constraints import Constraints
from moeprune.core.room import Room
from moeprune.errors import MismatchError, MoePruneError, PlanError, UsageError

SHORT = {"generations": 7, "population": 14, "elites": 3, "delta": 3, "mutations": 3}


def evolved(model, **asked):
    """The budget of a search, and the counts it starts from."""
    constraints = asked.pop("constraints", Constraints())
    given = {"ratio": None, "keep": None, "multiple_of": 1, **asked}
    start = Budget.of(model, allocation="uniform", constraints=constraints, **given)
    room = Room.of(model, constraints, multiple_of=given["multiple_of"])
    return start.evolved(room), start.max_remove


def scores(model, seed=0):
    return np.random.default_rng(seed).random((model.num_layers, model.width))


def searched(model, budget, start, judge, **options):
    score_LE = scores(model)
    return evoesap.allocate(
        score_LE,
        worth_DLE=score_LE[None],
        budget=budget,
        start=start,
        evaluate=lambda orders: judge,
        **options,
    )


def counts_of(outcome, model):
    return tuple(int(n) for n in np.array(model.num_experts) - outcome.keep_LE.sum(axis=1))


def plain_search(space, asked, value):
    """The algorithm in the fewest words: every candidate is judged, in full, each time."""
    worth, born, elites, history = {}, {}, [], []
    for generation in range(asked.generations):
        drawn = children(space, asked, generation, elites) if generation else starting(space, asked)
        for counts in drawn:
            born.setdefault(counts, len(born))
            worth[counts] = value(counts)
        pool = sorted({*elites, *drawn}, key=lambda c: (-worth[c], born[c]))
        elites = pool[: asked.elites]
        history.append(worth[elites[0]])
    return elites, history, len(born)


MODELS = {
    "plain": (facts([16] * 6), {"ratio": 0.4}),
    "deep": (facts([32] * 24, top_k=4), {"ratio": 0.25}),
    "two layers": (facts([8, 8]), {"ratio": 0.5}),
    "one layer": (facts([16], top_k=4), {"ratio": 0.5}),
    "groups": (facts([32] * 5, top_k=4, groups=4, top_groups=2), {"ratio": 0.3}),
    "multiple": (facts([24] * 5), {"ratio": 0.4, "multiple_of": 4}),
    "no multiple": (facts([15] * 5), {"ratio": 0.4, "multiple_of": 4}),
    "ragged": (facts([5, 12, 3, 20]), {"ratio": 0.34}),
    "constrained": (
        facts([16] * 6),
        {
            "ratio": 0.3,
            "constraints": Constraints(
                layer_keep={0: 16, 3: 5}, protected=((), (1, 2, 3), (), (), tuple(range(12)), ())
            ),
        },
    ),
}


@pytest.mark.parametrize("case", MODELS)
@pytest.mark.parametrize("digits", [1, 2, 6])  # 1: nearly all genomes tie
def test_shortcuts_change_nothing(case, digits):
    model, asked = MODELS[case]
    budget, start = evolved(model, **asked)
    quick, slow = (Judge(model.num_layers, digits=digits, shortcuts=on) for on in (True, False))
    outcome = searched(model, budget, start, quick, seed=5, **SHORT)
    without = searched(model, budget, start, slow, seed=5, **SHORT)
    elites, history, distinct = plain_search(
        Space.of(budget, start), Settings(seed=5, **SHORT), slow.value
    )
    assert counts_of(outcome, model) == counts_of(without, model) == elites[0]
    assert outcome.details["search"]["fitness"] == without.details["search"]["fitness"]
    assert outcome.details["search"]["history"] == [round(value, 12) for value in history]
    assert outcome.details["search"]["evaluations"] == len(quick.asked) == distinct
    candidates = 14 + 6 * 11
    assert outcome.details["search"]["candidates"] == candidates
    assert len({counts for counts, _, _ in quick.asked}) == len(quick.asked)


def test_what_is_left_out():
    model, asked = MODELS["deep"]
    budget, start = evolved(model, **asked)
    judge = Judge(24, digits=6)
    outcome = searched(model, budget, start, judge, seed=1, generations=20)
    search = outcome.details["search"]
    assert search["stopped_early"] > 0
    assert judge.layer_forwards < 0.8 * judge.layer_forwards_naive
    assert (
        outcome.details["search"]["fitness"]["best"]
        > outcome.details["search"]["fitness"]["uniform"]
    )
    assert outcome.details["search"]["fitness"]["uniform"] == round(judge.value(start), 12)
    assert list(outcome.details["search"]["fitness"]["patterns"]) == list(PATTERNS)
    history = outcome.details["search"]["history"]
    assert history == sorted(history) and len(history) == 20
    # The bar only rises, and the patterns know none.
    bars = [bar for _, _, bar in judge.asked]
    assert bars == sorted(bars)
    assert bars[:12] == [-np.inf] * 12


def test_progress_states_the_share_of_layers_run():
    """Of what judging each plan met so far in full would have run, also within a generation."""
    model, asked = MODELS["deep"]
    budget, start = evolved(model, **asked)
    judge = Judge(24, digits=6)
    told = []

    def tell(report):
        if judge.asked:
            share = judge.layer_forwards / (24 * judge.batches * report.done)
            told.append((f", {share:.0%} of a plain search's layers run", report.note))

    searched(model, budget, start, judge, seed=1, on_progress=tell, **SHORT)
    assert len(told) == len(judge.asked)
    for says, note in told:
        assert note.endswith(says)


@pytest.mark.parametrize("case", MODELS)
def test_every_genome_is_allowed(case):
    model, asked = MODELS[case]
    budget, start = evolved(model, **asked)
    judge = Judge(model.num_layers)
    searched(model, budget, start, judge, **{**SHORT, "population": 30})
    for counts, _, _ in judge.asked:
        assert sum(counts) == budget.remove_total
        for count, leave, most in zip(model.num_experts, counts, budget.max_remove, strict=True):
            assert 0 <= leave <= most
            assert leave == 0 or (count - leave) % budget.unit == 0


@pytest.mark.parametrize("case", MODELS)
def test_no_generation_is_the_uniform_plan(case):
    model, asked = MODELS[case]
    budget, start = evolved(model, **asked)
    uniform = Budget.of(model, **{"ratio": None, "keep": None, "allocation": "uniform", **asked})
    score_LE = scores(model)
    outcome = searched(model, budget, start, None, generations=0)
    assert np.array_equal(outcome.keep_LE, keep_highest(score_LE, uniform))
    assert not outcome.details


def test_numbers_that_were_asked_for_stay():
    model, asked = MODELS["constrained"]
    budget, start = evolved(model, **asked)
    assert (start[0], start[3]) == (0, 11)
    judge = Judge(6)
    searched(model, budget, start, judge, **SHORT)
    assert {(counts[0], counts[3]) for counts, _, _ in judge.asked} == {(0, 11)}
    assert len({counts[1] for counts, _, _ in judge.asked}) > 3
    assert max(counts[4] for counts, _, _ in judge.asked) <= 4  # 12 of 16 are protected


def test_the_best_of_all_genomes_is_found_where_there_are_few():
    model = facts([8, 8, 8])
    budget, start = evolved(model, ratio=0.5)
    judge = Judge(3, digits=9)
    outcome = searched(model, budget, start, judge, generations=30)
    every = [(a, b, 12 - a - b) for a in range(7) for b in range(7) if 0 <= 12 - a - b <= 6]
    assert outcome.details["search"]["fitness"]["best"] == round(max(map(judge.value, every)), 12)


def test_protected_experts_stand_last():
    model = facts([8, 8])
    budget, start = evolved(model, ratio=0.5)
    score_LE = np.arange(16.0).reshape(2, 8)
    protected = replace(budget, protected=((0, 1), ()))
    orders = leaving_orders(score_LE, protected)
    assert [list(order) for order in orders] == [[2, 3, 4, 5, 6, 7, 0, 1], list(range(8))]
    outcome = evoesap.allocate(
        score_LE, worth_DLE=score_LE[None], budget=protected, start=start,
        evaluate=lambda orders: Judge(2), **SHORT,
    )  # fmt: skip
    assert outcome.keep_LE[0, :2].all()


class Killed(Exception):
    """Stands for a kill."""


class Dying(Judge):
    """Dies at the n-th genome."""

    def __init__(self, *args, at, **options):
        super().__init__(*args, **options)
        self.at = at

    def score(self, counts, **how):
        if len(self.asked) == self.at:
            raise Killed
        return super().score(counts, **how)


@given(at=st.lists(st.integers(1, 60), min_size=1, max_size=4))
@settings(max_examples=25, deadline=None)
def test_killed_anywhere_and_resumed(tmp_path_factory, at):
    model, asked = MODELS["plain"]
    budget, start = evolved(model, **asked)
    whole = searched(model, budget, start, Judge(6), seed=3, **SHORT)
    journal = Journal(tmp_path_factory.mktemp("search") / "plan.search.json", "f00d")
    for moment in at:
        with pytest.raises(Killed):
            searched(model, budget, start, Dying(6, at=min(moment, 14)), seed=3, journal=journal,
                     **{**SHORT, "generations": 5})  # fmt: skip
            raise Killed
    resumed = searched(model, budget, start, Judge(6), seed=3, journal=journal, **SHORT)
    assert np.array_equal(resumed.keep_LE, whole.keep_LE)
    assert resumed.details == whole.details
    again = searched(model, budget, start, Judge(6), seed=3, journal=journal, **SHORT)
    assert again.details == whole.details
    journal.remove()
    assert not journal.path.exists()


def test_a_journal_of_another_search_is_refused(tmp_path):
    model, asked = MODELS["plain"]
    budget, start = evolved(model, **asked)
    path = tmp_path / "plan.search.json"
    searched(model, budget, start, Judge(6), journal=Journal(path, "f00d"), **SHORT)
    with pytest.raises(MismatchError, match="other stats, text, model or options"):
        searched(model, budget, start, Judge(6), journal=Journal(path, "beef"), **SHORT)
    with pytest.raises(MismatchError, match=r"holds 7 generations, --generations 3 asks for fewer"):
        searched(model, budget, start, Judge(6), journal=Journal(path, "f00d"),
                 **{**SHORT, "generations": 3})  # fmt: skip
    elsewhere = Judge(6)
    elsewhere.value = lambda counts: 0.25
    with pytest.raises(MismatchError, match="another machine or library"):
        searched(model, budget, start, elsewhere, journal=Journal(path, "f00d"), **SHORT)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("known", None),
        ("known", []),
        ("known", [[1, 2]]),
        ("known", [["a"] * 7]),
        ("elites", []),
        ("elites", [[0] * 6]),
        ("elites", 3),
        ("elites", [[[1], 2]]),
        ("elites", "twice"),
        ("history", [0.5]),
        ("history", [math.nan] * 7),
        ("known", "NaN"),
        ("known", "sum"),
        ("generations", "7"),
        ("generations", 0),
        ("drawn", -1),
        ("drawn", 1),
        ("schema", "moeprune.plan/1"),
        ("schema", "moeprune.search/2"),
    ],
)
def test_a_damaged_journal_is_one_line(tmp_path, key, value):
    model, asked = MODELS["plain"]
    budget, start = evolved(model, **asked)
    journal = Journal(tmp_path / "plan.search.json", "f00d")
    searched(model, budget, start, Judge(6), journal=journal, **SHORT)
    body = json.loads(journal.path.read_text())
    if value == "twice":
        value = body["elites"][:1] * 2
    elif value == "NaN":
        value = [[*body["known"][0][:-1], math.nan], *body["known"][1:]]
    elif value == "sum":
        value = [*body["known"], [*[0] * len(start), 0.5]]
    journal.path.write_text(json.dumps({**body, key: value}))
    with pytest.raises(PlanError) as caught:
        searched(model, budget, start, Judge(6), journal=journal, **SHORT)
    assert str(journal.path) in str(caught.value) and "\n" not in str(caught.value)
    journal.path.write_text("[1")
    with pytest.raises(MoePruneError):
        searched(model, budget, start, Judge(6), journal=journal, **SHORT)


@pytest.mark.parametrize(
    "wrong",
    [
        {"generations": -1},
        {"generations": 2.0},
        {"population": 0},
        {"elites": 0},
        {"elites": 32},
        {"delta": 0},
        {"mutations": 0},
        {"seed": -1},
        {"seed": 2**32},
    ],
)
def test_options_out_of_range(wrong):
    model, asked = MODELS["plain"]
    budget, start = evolved(model, **asked)
    with pytest.raises(UsageError, match=f"--{next(iter(wrong))}"):
        searched(model, budget, start, Judge(6), **wrong)


def test_patterns_by_hand():
    model = facts([16] * 8)
    budget, start = evolved(model, ratio=0.25)
    space = Space.of(budget, start)
    rng = np.random.RandomState(0)
    made = {name: space.counts(pattern(name, space, rng)) for name in PATTERNS}
    assert made["uniform"] == (4,) * 8
    # 32 in the proportions 1..8 (of 36) is 0.89 1.78 2.67 3.56 4.44 5.33 6.22 7.11: the whole parts
    # make 28, the four largest fractions get one more each.
    assert made["up"] == (1, 2, 3, 4, 4, 5, 6, 7)
    assert made["down"] == made["up"][::-1]
    # 32 of 12 is 2.67 each: 5.33 for the heavy ones, which leaves 4 over for the light ones.
    assert made["alt"] == (5, 3, 5, 3, 5, 3, 5, 3)
    # 32 of 10 is 3.2 each: 6.4 for the first quarter, which leaves 2 over.
    assert made["block-early"] == (7, 7, 3, 3, 3, 3, 3, 3)
    assert made["block-late"] == made["block-early"][::-1]
    assert made["front-heavy"][0] == max(made["front-heavy"])
    assert made["back-heavy"][-1] == max(made["back-heavy"])
    assert made["mid"][3] > made["mid"][0]
    assert made["mid-neg"][0] > made["mid-neg"][3]
    assert all(sum(counts) == 32 for counts in made.values())
    assert len(set(made.values())) >= 11


def test_shares_by_hand():
    # 7 by 1:2:3 is 1.17, 2.33, 3.5: whole parts 1, 2, 3, the last one to the largest fraction.
    assert spread(7, np.array([1.0, 2.0, 3.0]), (9, 9, 9)) == (1, 2, 4)
    # The heavy layer is full at 2: what is left goes by fraction, then round robin.
    assert spread(8, np.array([0.0, 0.0, 1.0]), (5, 5, 2)) == (3, 3, 2)
    assert spread(0, np.array([0.0, 0.0]), (0, 0)) == (0, 0)


@given(data=st.data())
@settings(max_examples=100, deadline=None)
def test_mutations_move_few_units_and_lose_none(data):
    top = tuple(data.draw(st.lists(st.integers(0, 6), min_size=1, max_size=6)))
    parent = tuple(data.draw(st.integers(0, most)) for most in top)
    delta, mutations = data.draw(st.integers(1, 4)), data.draw(st.integers(1, 3))
    rng = np.random.RandomState(data.draw(st.integers(0, 99)))
    child = mutated(parent, top, delta=delta, mutations=mutations, rng=rng)
    assert sum(child) == sum(parent)
    assert all(0 <= level <= most for level, most in zip(child, top, strict=True))
    assert sum(abs(a - b) for a, b in zip(child, parent, strict=True)) <= 2 * delta * mutations


def test_how_often_one_two_and_three_switches_come():
    """The smaller of two draws of 1..3: 5/9, 3/9, 1/9; seen where every switch shows."""
    rng = np.random.RandomState(0)
    top, parent = (1000,) * 400, (500,) * 400
    moved = []
    for _ in range(3000):
        child = mutated(parent, top, delta=1, mutations=3, rng=rng)
        moved.append(sum(abs(a - b) for a, b in zip(child, parent, strict=True)) // 2)
    share = np.bincount(moved, minlength=4) / len(moved)
    assert np.abs(share[1:4] - np.array([5, 3, 1]) / 9).max() < 0.03
