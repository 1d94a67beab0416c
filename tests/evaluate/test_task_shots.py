"""Which questions are drawn, and which stand solved before each."""

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.tasks import Protocol, Question, Task
from moeprune.errors import UsageError
from moeprune.evaluate.tasks.draws import needed, sample, shots_of


def question(number: int, domain: str = "d", text: str = "") -> Question:
    text = text or f"text {number}"
    return Question(id=f"q{number}", domain=domain, text=text, answers=(f"a{number}",))


@st.composite
def splits(draw: st.DrawFn) -> tuple[Question, ...]:
    rows = draw(st.lists(st.tuples(st.sampled_from("abc"), st.integers(0, 5)), max_size=14))
    return tuple(question(at, domain, f"t{text}") for at, (domain, text) in enumerate(rows))


@given(
    split=splits(),
    asked=st.sampled_from("abcd"),
    text=st.integers(0, 6),
    count=st.integers(1, 4),
    draw=st.sampled_from(["first", "seeded"]),
    seed=st.integers(0, 3),
)
def test_what_is_kept_of_a_split_gives_the_same_shots_as_all_of_it(
    split: tuple[Question, ...], asked: str, text: int, count: int, draw: str, seed: int
) -> None:
    here = question(99, asked, f"t{text}")
    others = [shot for shot in split if shot.text != here.text]
    if len(others) < count:
        return
    protocol = Protocol(kind="generate", shots=count, shots_draw=draw, seed=seed)
    whole = Task(name="t", protocol=protocol, questions=(here,), shots=split)
    kept = needed(split, count=count, draw=draw, seed=seed)
    less = replace(whole, shots=kept)
    found = shots_of(whole, here)
    assert shots_of(less, here) == found and len(found) == count
    assert len(kept) <= len(split) and here.text not in {shot.text for shot in found}
    own = [shot for shot in others if shot.domain == asked]
    assert set(found) <= set(own if len(own) >= count else others)
    if draw == "first":
        assert list(found) == (own if len(own) >= count else others)[:count]


def test_only_what_can_be_shown_is_kept() -> None:
    split = [question(at, "one") for at in range(1000)] + [question(2000, "two")]
    kept = needed(split, count=5, draw="first", seed=0)
    assert [shot.id for shot in kept] == ["q0", "q1", "q2", "q3", "q4", "q5", "q2000"]
    assert needed(split, count=0, draw="first", seed=0) == ()


def test_a_question_never_stands_before_itself_nor_under_another_id() -> None:
    split = (*map(question, range(4)), question(9, text="text 1"))
    protocol = Protocol(kind="generate", shots=3)
    task = Task(name="t", protocol=protocol, questions=split, shots=split)
    assert [shot.id for shot in shots_of(task, split[1])] == ["q0", "q2", "q3"]
    assert [shot.id for shot in shots_of(task, split[0])] == ["q1", "q2", "q3"]
    short = replace(task, protocol=replace(protocol, shots=4))
    with pytest.raises(UsageError, match=r"4 shots, and but for question 'q1' itself has 3"):
        shots_of(short, split[1])


@given(
    count=st.integers(1, 30),
    limit=st.integers(1, 30),
    seed=st.integers(0, 5),
    order=st.randoms(use_true_random=False),
)
def test_a_sample_depends_on_neither_order_nor_size(
    count: int, limit: int, seed: int, order: object
) -> None:
    questions = [question(at) for at in range(count)]
    drawn = sample(questions, limit=limit, seed=seed)
    assert len(drawn) == min(limit, count) and list(drawn) == sorted(drawn, key=questions.index)
    mixed = list(questions)
    order.shuffle(mixed)  # type: ignore[attr-defined]
    assert set(sample(mixed, limit=limit, seed=seed)) == set(drawn)
    assert set(drawn) <= set(sample(questions, limit=limit + 1, seed=seed))


def test_another_seed_draws_others_and_all_are_drawn_alike() -> None:
    questions = [question(at) for at in range(40)]
    samples = {sample(questions, limit=10, seed=seed) for seed in range(20)}
    assert len(samples) == 20
    often = [sum(one in chosen for chosen in samples) for one in questions]
    assert max(often) <= 12 and sum(often) == 200  # 5 expected; 12 is beyond four sigma
    protocol = Protocol(kind="generate", shots=5, shots_draw="seeded")
    task = Task(name="t", protocol=protocol, questions=(question(77),), shots=tuple(questions))
    again = replace(task, protocol=replace(protocol, seed=1))
    first, other = shots_of(task, question(77)), shots_of(again, question(77))
    assert first != other and first != tuple(questions[:5])
