"""Only the same questions, asked in the same way, are put side by side."""

import random
from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from written_runs import answers, run

from moeprune.core.run import Run
from moeprune.errors import MismatchError, UsageError
from moeprune.evaluate.comparison.joining import chosen_tasks, join


def test_answers_are_paired_by_task_id_and_seed_whatever_their_order() -> None:
    base = run("base", answers("a", "101"), answers("b", "11"), answers("a", "111", seed=4))
    variant = run("v", answers("b", "01"), answers("a", "110", seed=4), answers("a", "001"))
    found = join(base, variant, ["a", "b"])
    assert [(one.id, one.seed, one.correct, other.correct) for one, other in found.pairs["a"]] == [
        ("0", 0, True, False),
        ("1", 0, False, False),
        ("2", 0, True, True),
        ("0", 4, True, True),
        ("1", 4, True, True),
        ("2", 4, True, False),
    ]
    assert [(one.id, other.correct) for one, other in found.pairs["b"]] == [
        ("0", False),
        ("1", True),
    ]
    assert found.only_base == {"a": 0, "b": 0} == found.only_variant


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 10**9))
def test_what_only_one_has_is_counted(seed: int) -> None:
    draw = random.Random(seed)

    def drawn(name: str) -> Run:
        groups = [
            [row for row in answers(task, "1" * 12, seed=own) if draw.random() < 0.6]
            for task in "ab"
            for own in (0, 1)
        ]
        rows = [row for group in groups for row in group]
        draw.shuffle(rows)
        return run(name, rows)

    base, variant = drawn("base"), drawn("v")
    shared = [name for name in "ab" if name in base.tasks and name in variant.tasks]
    keys = [{row.key for row in one.samples if row.task in shared} for one in (base, variant)]
    if any(not {key for key in keys[0] & keys[1] if key[0] == name} for name in shared):
        with pytest.raises(MismatchError, match="share no question"):
            join(base, variant, shared)
        return
    found = join(base, variant, shared)
    assert {one.key for pairs in found.pairs.values() for one, _ in pairs} == keys[0] & keys[1]
    assert all(one.key == other.key for pairs in found.pairs.values() for one, other in pairs)
    assert sum(found.only_base.values()) == len(keys[0] - keys[1])
    assert sum(found.only_variant.values()) == len(keys[1] - keys[0])


@pytest.mark.parametrize(
    ("field", "value", "words"),
    [
        (
            "input",
            "other tokens",
            "2 of 3 questions had another input in v than in base, first '1'",
        ),
        ("answer", "C", "2 of 3 questions had another right answer"),
        ("domain", "law", "2 of 3 questions had another domain"),
    ],
)
def test_questions_asked_otherwise_are_refused(field: str, value: str, words: str) -> None:
    base = run("base", answers("mmlu", "101"))
    rows = answers("mmlu", "101")
    variant = run("v", [rows[0], *(replace(row, **{field: value}) for row in rows[1:])])
    with pytest.raises(MismatchError) as caught:
        join(base, variant, ["mmlu"])
    assert words in str(caught.value) and str(caught.value).startswith("task mmlu: ")
    # What is not known is no difference.
    unknown = run("v", [replace(row, **{field: ""}) for row in rows])
    if field != "domain":
        assert join(base, unknown, ["mmlu"]).only_base == {"mmlu": 0}


PROTOCOL = {"shots": 5, "limit": None, "expected": 0.8, "max_new_tokens": 512}
HARNESS = {"limit": 5, "parts": {"a": {"version": "1", "shots": 5, "config": "c", "sha256": "x"}}}


@pytest.mark.parametrize(
    ("one", "other", "words"),
    [
        ({"sha256": "a" * 64}, {"sha256": "b" * 64}, "questions or protocol (aaaaaaaaaaaa…"),
        ({"kind": "letters"}, {"kind": "cloze"}, "kind (letters and cloze)"),
        ({"shots": {"arc": 5}}, {"shots": {"arc": 0}}, "shots"),
        ({"version": {"x": "1", "y": "2"}}, {"version": {"y": "3"}}, "version"),
        (
            {"sha256": "a", "protocol": PROTOCOL},
            {"sha256": "b", "protocol": {**PROTOCOL, "max_new_tokens": 1024}},
            "max_new_tokens (512 and 1024)",
        ),
        (
            {"sha256": "a", "protocol": PROTOCOL},
            {"sha256": "b", "protocol": {**PROTOCOL, "thinking": True}},
            "thinking (nothing and True)",
        ),
        (
            {"sha256": "a", "protocol": HARNESS},
            {
                "sha256": "b",
                "protocol": {
                    **HARNESS,
                    "parts": {"a": {"version": "1", "shots": 5, "config": "d"}},
                },
            },
            "config of a (c and d)",
        ),
    ],
)
def test_another_protocol_is_refused(
    one: dict[str, object], other: dict[str, object], words: str
) -> None:
    base = run("base", answers("arc", "1"), tasks={"arc": one})
    with pytest.raises(MismatchError) as caught:
        join(base, run("v", answers("arc", "1"), tasks={"arc": other}), ["arc"])
    assert words in str(caught.value)
    join(base, run("v", answers("arc", "1"), tasks={"arc": {}}), ["arc"])
    join(base, run("v", answers("arc", "1"), tasks={"arc": one}), ["arc"])


def test_fewer_questions_of_one_protocol_are_paired() -> None:
    """A limit changes the hash of a task; inputs tell that the questions are the same."""
    for protocol, more in (
        (PROTOCOL, {**PROTOCOL, "limit": 2, "expected": None}),
        (HARNESS, {"limit": 2, "parts": {"a": {**HARNESS["parts"]["a"], "sha256": "y"}}}),  # type: ignore[index]
    ):
        told = {"arc": {"sha256": "a", "protocol": protocol}}
        base = run("base", answers("arc", "1101"), tasks=told)
        other = {"arc": {"sha256": "b", "protocol": more}}
        found = join(base, run("v", answers("arc", "10"), tasks=other), ["arc"])
        assert (len(found.pairs["arc"]), found.only_base) == (2, {"arc": 2})


def test_nothing_shared_is_refused_and_a_missing_task_is_counted() -> None:
    base = run("base", answers("arc", "11"), answers("piqa", "1111"))
    with pytest.raises(MismatchError, match=r"share no question \(first '0' and '7'\)"):
        join(base, run("v", answers("arc", "1", first=7)), ["arc"])
    with pytest.raises(MismatchError, match="'0' and '0' seed 3"):
        join(base, run("v", answers("arc", "1", seed=3)), ["arc"])
    found = join(base, run("v", answers("arc", "11")), ["arc", "piqa"])
    assert found.only_base == {"arc": 0, "piqa": 4} and list(found.pairs) == ["arc"]


def test_tasks_are_those_of_the_base_that_some_variant_has() -> None:
    base = run("base", answers("arc", "1"), answers("piqa", "1"), answers("mmlu", "1"))
    one, other = run("v", answers("mmlu", "1")), run("w", answers("arc", "1"), answers("x", "1"))
    assert chosen_tasks(base, [one, other], None) == ["arc", "piqa", "mmlu"]
    assert chosen_tasks(base, [other], ["arc"]) == ["arc"]
    with pytest.raises(UsageError, match="no task of v named 'arc'"):
        chosen_tasks(base, [other, one], ["arc"])
    with pytest.raises(UsageError, match="Did you mean 'mmlu'"):
        chosen_tasks(base, [one], ["mmul"])
    with pytest.raises(MismatchError, match=r"no task of base \(arc, piqa, mmlu\).*\(x\)"):
        chosen_tasks(base, [run("v", answers("x", "1"))], None)
