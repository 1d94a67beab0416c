"""Whole comparisons with known answers, each number worked out again by scipy or by counting."""

import gc
import itertools
import json
import math
import random
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from written_runs import answers, flipped, run, texts

from moeprune.core.run import Run
from moeprune.core.sample import Sample
from moeprune.errors import MismatchError, UsageError
from moeprune.evaluate.comparison.comparing import Comparison, compare_runs
from moeprune.evaluate.comparison.regressions import Limit


@pytest.fixture(scope="module", autouse=True)
def statsmodels_collects_no_garbage() -> Iterator[None]:
    """``multipletests`` collects it in each call, which takes longer than all else here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(gc, "collect", lambda: 0)
        yield


def drawn(draw: random.Random, right: str, lost: float, won: float) -> str:
    chance = {"1": lost, "0": won}
    other = {"1": "0", "0": "1"}
    return "".join(other[mark] if draw.random() < chance[mark] else mark for mark in right)


def marks(draw: random.Random, size: int, right: float = 0.7) -> str:
    return "".join("1" if draw.random() < right else "0" for _ in range(size))


@pytest.mark.parametrize(("lost", "won"), [(99, 92), (84, 29), (44, 37)])
def test_the_flips_of_the_paper(lost: int, won: int) -> None:
    right = "1" * 1633 + "0" * 367  # 81.65 % of 2,000
    base = run("native", answers("mmlu", right))
    found = compare_runs(base, [run("v", answers("mmlu", flipped(right, lost, won)))])
    part = found.variants[0].tasks["mmlu"].overall
    assert (part.questions, part.to_wrong, part.to_right) == (2000, lost, won)
    assert part.base == 0.8165
    assert part.points == pytest.approx((won - lost) / 20)
    assert part.p == pytest.approx(stats.binomtest(won, lost + won).pvalue, rel=1e-9)
    assert part.low is not None and part.high is not None
    assert part.low < part.points < part.high
    # The paper: 99/92 is no difference, 84/29 is one, 44/37 is none.
    assert part.significant is (lost == 84)
    # 1.96 · sqrt(share that flips / n), in points.
    assert part.resolves == pytest.approx(
        100 * stats.norm.ppf(0.975) * math.sqrt((lost + won) / 2000 / 2000)
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9))
def test_every_number_of_a_comparison_is_what_counting_says(seed: int) -> None:
    draw = random.Random(seed)
    sizes = {"mmlu": 60, "gsm8k": 31, "piqa": 8}
    domains = ["law", "физика", "化学"]
    base_marks = {task: marks(draw, size) for task, size in sizes.items()}
    runs = []
    for name, strength in (("native", 0.0), ("a", 0.2), ("b", 0.5), ("c", 0.05)):
        rows = [
            answers(
                task,
                drawn(draw, base_marks[task], strength, strength / 2),
                domains=domains if task == "mmlu" else (),
            )
            for task in sizes
        ]
        runs.append(run(name, *rows))
    base, *variants = runs
    found = compare_runs(base, variants)
    p_values, domain_p = [], []
    for own, variant in zip(found.variants, variants, strict=True):
        for task in sizes:
            pairs = [(base.by_key[row.key].correct, row.correct) for row in variant.of_task(task)]
            p_values.append(check_part(own.tasks[task].overall, pairs))
            for domain, part in own.tasks[task].domains.items():
                inside = [
                    (base.by_key[row.key].correct, row.correct)
                    for row in variant.of_task(task)
                    if row.domain == domain
                ]
                domain_p.append(check_part(part, inside))
        every = [(base.by_key[row.key].correct, row.correct) for row in variant.samples]
        assert own.pooled is not None
        check_part(own.pooled, every)
        changes = [own.tasks[task].overall.points for task in sizes]
        assert own.mean_of_tasks == pytest.approx(sum(changes) / 3)
        order = [part.points for part in own.tasks["mmlu"].domains.values()]
        assert order == sorted(order)
        assert own.worst is not None
        assert own.worst[2].points == min(
            part.points for task in own.tasks.values() for part in task.domains.values()
        )
    assert found.families == {"tasks": 9, "domains": 15, "overall": 3}
    got = [own.tasks[task].overall.p_holm for own in found.variants for task in sizes]
    assert got == pytest.approx(multipletests(p_values, method="holm")[1])
    got = [
        part.p_holm
        for own in found.variants
        for task in sizes
        for part in own.tasks[task].domains.values()
    ]
    assert got == pytest.approx(multipletests(domain_p, method="holm")[1])
    pooled = [own.pooled.p for own in found.variants if own.pooled]
    got = [own.pooled.p_holm for own in found.variants if own.pooled]
    assert got == pytest.approx(multipletests(pooled, method="holm")[1])


def check_part(part: Any, pairs: list[tuple[Any, Any]]) -> float:
    lost = sum(1 for one, other in pairs if one and not other)
    won = sum(1 for one, other in pairs if other and not one)
    assert (part.questions, part.to_wrong, part.to_right) == (len(pairs), lost, won)
    assert part.base == pytest.approx(sum(one for one, _ in pairs) / len(pairs))
    assert part.variant == pytest.approx(sum(other for _, other in pairs) / len(pairs))
    assert part.points == pytest.approx(100 * (won - lost) / len(pairs))
    p = stats.binomtest(lost, lost + won).pvalue if lost + won else 1.0
    assert part.p == pytest.approx(p, rel=1e-9)
    assert part.low <= part.points + 1e-9 and part.points - 1e-9 <= part.high
    return float(part.p)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**9))
def test_the_order_of_lines_and_of_variants_does_not_matter(seed: int) -> None:
    draw = random.Random(seed)
    right = {task: marks(draw, 20) for task in ("a", "b", "c")}

    def made(name: str, strength: float) -> Run:
        groups = [
            answers(
                task,
                drawn(draw, right[task], strength, strength),
                domains=("x", "y"),
                truncated=lambda place: place % 5 == 0,
                tokens=lambda place: draw.randrange(90),
                seed=own,
            )
            for task in right
            for own in (0, 1)
        ]
        return run(name, *groups, texts("wiki", [draw.uniform(5, 9) for _ in range(6)]))

    base, *variants = (
        made(name, at) for name, at in (("n", 0), ("u", 0.1), ("v", 0.3), ("w", 0.2))
    )

    def shuffled(one: Run) -> Run:
        return replace(one, samples=tuple(draw.sample(one.samples, len(one.samples))))

    first = by_name(compare_runs(base, variants))
    order = draw.sample(variants, 3)
    again = by_name(compare_runs(shuffled(base), [shuffled(one) for one in order]))
    assert first == again


def by_name(found: Comparison) -> dict[str, Any]:
    """As JSON, of which only what is listed by variant follows their order."""
    body = json.loads(json.dumps(found.to_json(), allow_nan=False))
    variants = {one["name"]: one for one in body.pop("variants")}
    trade = body.pop("tradeoff")
    pairs = sorted(zip(trade["variants"], trade["points"], strict=True))
    for one in body["perplexity_beside_accuracy"]:
        one["disagree"], one["surely"] = sorted(one["disagree"]), sorted(one["surely"])
    base = body["base"]
    for task in base["tasks"].values():
        task["domains"] = dict(sorted(task["domains"].items()))
    return {**body, "warnings": sorted(body["warnings"]), "of": variants, "pairs": pairs}


def test_several_seeds_are_repeated_measures() -> None:
    draw = random.Random(5)
    right = marks(draw, 12)
    base = run("native", *(answers("aime", drawn(draw, right, 0.2, 0.2), seed=s) for s in range(3)))
    variant = run("v", *(answers("aime", drawn(draw, right, 0.5, 0.2), seed=s) for s in range(3)))
    found = compare_runs(base, [variant]).variants[0]
    part = found.tasks["aime"].overall
    gaps = [
        sum(variant.by_key["aime", str(q), s].correct for s in range(3))  # type: ignore[misc]
        - sum(base.by_key["aime", str(q), s].correct for s in range(3))  # type: ignore[misc]
        for q in range(12)
    ]
    assert (part.questions, part.seeds) == (12, 3)
    assert part.points == pytest.approx(100 * sum(gaps) / 36)
    # Signs of the questions' gaps, all 2^12 of them.
    sums = [
        abs(sum(s * g for s, g in zip(signs, gaps, strict=True)))
        for signs in itertools.product((1, -1), repeat=12)
    ]
    assert part.p == pytest.approx(np.mean(np.array(sums) >= abs(sum(gaps))))
    assert part.method == "exact"
    own = found.tasks["aime"].by_seed
    assert list(own) == [0, 1, 2]
    for seed, one in own.items():
        pairs = [
            (
                base.by_key["aime", str(q), seed].correct,
                variant.by_key["aime", str(q), seed].correct,
            )
            for q in range(12)
        ]
        check_part(one, pairs)
        assert one.p_holm is None


def test_a_question_that_lacks_a_seed_is_left_out() -> None:
    rows = [*answers("aime", "101", seed=0), *answers("aime", "111", seed=1)]
    base = run("native", rows)
    found = compare_runs(base, [run("v", rows[:-1])])
    part = found.variants[0].tasks["aime"].overall
    assert (part.questions, part.seeds) == (2, 2)
    assert any(
        "an answer of native has no counterpart in v, and is left out" in line
        for line in found.warnings
    )
    assert any(
        "1 of 3 questions of native were asked fewer than 2 times" in line
        for line in found.warnings
    )
    both = compare_runs(run("native", rows[:-1]), [run("v", rows[:-1])])
    assert any("1 of 3 questions" in line for line in both.warnings)


def test_loops_are_not_counted_together_with_accuracies() -> None:
    told = {"loops": {"kind": "degeneration"}}
    base = run(
        "n", answers("t", "1100"), answers("u", "11"), answers("loops", "1" * 90), tasks=told
    )
    other = run(
        "v", answers("t", "1000"), answers("u", "11"), answers("loops", "0" * 90), tasks=told
    )
    own = compare_runs(base, [other]).variants[0]
    assert own.pooled is not None and own.pooled.questions == 6
    assert own.mean_of_tasks == -12.5
    assert own.worst is not None and own.worst[0] == "loops"


@pytest.mark.parametrize("right", ["1", "0", "1" * 40, "0" * 40])
@pytest.mark.parametrize("other", ["same", "opposite"])
def test_one_question_all_right_and_none_right(right: str, other: str) -> None:
    answered = right if other == "same" else right.translate(str.maketrans("01", "10"))
    base, variant = run("native", answers("t", right)), run("v", answers("t", answered))
    found = compare_runs(base, [variant])
    part = found.variants[0].tasks["t"].overall
    n = len(right)
    assert part.points == (0 if other == "same" else 100 * (1 if right[0] == "0" else -1))
    assert part.low is not None and part.high is not None
    assert -100 <= part.low <= part.points <= part.high <= 100
    assert part.low < part.high  # one question proves nothing either way
    assert part.p == pytest.approx(1.0 if other == "same" else min(1, 2 * 0.5**n))
    assert (part.resolves is None) is (n < 6)
    json.dumps(found.to_json(), allow_nan=False)


def test_metrics_can_be_chosen() -> None:
    def rows(right: str, norm: str, f1: list[float]) -> list[Sample]:
        return [
            replace(row, metrics={"acc": row.metrics["acc"], "acc_norm": float(mark), "f1": value})
            for row, mark, value in zip(answers("arc", right), norm, f1, strict=True)
        ]

    base = run("native", rows("1100", "1111", [0.5, 0.25, 1, 0]), answers("gsm8k", "10"))
    other = run("v", rows("0000", "1110", [0.5, 0, 0.5, 0]), answers("gsm8k", "10"))
    found = compare_runs(base, [other], metric=["acc_norm"])
    tasks = found.variants[0].tasks
    assert (tasks["arc"].overall.to_wrong, tasks["arc"].overall.points) == (1, -25)
    assert (tasks["arc"].metric, tasks["gsm8k"].metric) == ("acc_norm", None)
    assert found.warnings[0] == "task gsm8k has no acc_norm; it is compared by what it has."
    found = compare_runs(base, [other], metric=["arc=f1", "acc"])
    part = found.variants[0].tasks["arc"].overall
    assert (part.to_wrong, part.scale, part.points) == (None, 100, pytest.approx(-18.75))
    assert part.p == pytest.approx(0.5)  # two of four differ: signs agree in 2 of 4 ways
    with pytest.raises(UsageError, match="no metric of native named 'acc_nrm'"):
        compare_runs(base, [other], metric=["acc_nrm"])
    with pytest.raises(UsageError, match="no metric of gsm8k named 'f1'"):
        compare_runs(base, [other], metric=["gsm8k=f1"])
    with pytest.raises(UsageError, match="no task 'ark'"):
        compare_runs(base, [other], metric=["ark=f1"])


@pytest.mark.parametrize(
    "header",
    [
        {"metric": "brier", "higher_is_better": {"brier": False, "acc": True}},
        {"protocol": {"parts": {"t": {"higher_is_better": {"brier": False}}, "u": 3}}},
    ],
)
def test_what_is_better_when_lower_is_not_taken_for_a_score(header: dict[str, Any]) -> None:
    def made(name: str, acc: float) -> Run:
        rows = [
            Sample(task="t", domain="t", id=str(place), metrics={"brier,none": 0.5, "acc": acc})
            for place in range(3)
        ]
        return run(name, rows, tasks={"t": header})

    found = compare_runs(made("n", 0.5), [made("v", 0.25)]).variants[0].tasks["t"]
    assert (found.metric, found.overall.points) == ("acc", -25)
    with pytest.raises(UsageError, match="of brier,none lower is better"):
        compare_runs(made("n", 0.5), [made("v", 0.25)], metric=["brier,none"])
    loops = [replace(row, metrics={"loop": 1.0}) for row in answers("long", "11")]
    with pytest.raises(UsageError, match="of loop lower is better"):
        compare_runs(run("n", loops), [run("v", loops)], metric=["loop"])


def test_a_score_on_its_own_scale_is_no_accuracy() -> None:
    def rows(values: list[float]) -> list[Sample]:
        return [
            Sample(task="sum", domain="sum", id=str(place), metrics={"rouge": value})
            for place, value in enumerate(values)
        ]

    told = {"sum": {"kind": "lm_eval", "metric": "rouge"}}
    base = run("native", rows([3, 4, 5, 2, 3.3]), tasks=told)
    other = run("v", rows([2, 3, 5, 1, 3.1]), tasks=told)
    found = compare_runs(base, [other])
    own = found.variants[0]
    part = own.tasks["sum"].overall
    assert (part.scale, part.points) == (1, pytest.approx(-0.64))
    assert own.worst is None and own.pooled is None and own.mean_of_tasks is None
    low, high = stats.ttest_rel([2, 3, 5, 1, 3.1], [3, 4, 5, 2, 3.3]).confidence_interval()
    assert (part.low, part.high) == (pytest.approx(low), pytest.approx(high))
    with pytest.raises(UsageError, match="v has no accuracy"):
        compare_runs(base, [other], limit=Limit(points=1))


def test_truncation_and_length_are_paired() -> None:
    lengths = [[10, 20, 30, 40, 50, 64], [12, 20, 64, 64, 50, 64]]
    runs = [
        run(
            name,
            [
                replace(
                    row,
                    tokens=length,
                    truncated=length == 64,
                    metrics={"loop": float(length == 64)},
                )
                for row, length in zip(answers("gsm8k", "111100"), own, strict=True)
            ],
        )
        for name, own in zip(("native", "v"), lengths, strict=True)
    ]
    made = compare_runs(runs[0], [runs[1]]).variants[0].tasks["gsm8k"].writing
    assert made is not None
    assert (made.truncation.base, made.truncation.variant) == (1 / 6, 0.5)
    assert (made.truncation.to_right, made.truncation.to_wrong, made.truncation.p) == (2, 0, 0.5)
    gaps = [2, 0, 34, 24, 0, 0]
    assert made.tokens.points == pytest.approx(np.mean(gaps))
    low, high = stats.ttest_1samp(gaps, 0).confidence_interval()
    assert (made.tokens.low, made.tokens.high) == (pytest.approx(low), pytest.approx(high))
    assert (made.base.p50, made.variant.p50, made.base.max) == (30, 50, 64)
    assert made.loops is not None and made.loops.points == pytest.approx(100 / 3)
    plain = compare_runs(run("n", answers("t", "10")), [run("v", answers("t", "11"))])
    assert plain.variants[0].tasks["t"].writing is None


def test_perplexity_stands_beside_accuracy_and_contradiction_is_told() -> None:
    right = "1" * 60 + "0" * 40
    # The paper on over-dispersed models, table 1: the lower perplexity has the lower accuracy.
    table = {"mesa": (107.14, 92), "reap": (145.04, 89), "rm": (83.29, 83), "random": (40.95, 78)}

    def made(name: str, perplexity: float, points: int) -> Run:
        kept = "1" * points + "0" * (100 - points)
        cost = [math.log(perplexity) * 10 + (-1) ** place for place in range(20)]
        return run(name, answers("gsm8k", kept), texts("wiki", cost))

    base = made("native", 126.02, 88)
    found = compare_runs(base, [made(name, *values) for name, values in table.items()])
    assert len(right) == 100
    texts_of = found.variants[2].perplexity["wiki"]
    assert texts_of.baseline == pytest.approx(126.02) and texts_of.variant == pytest.approx(83.29)
    (own,) = found.beside
    assert (own.texts, own.task) == ("wiki", "gsm8k")
    assert own.disagree == ("reap", "rm", "random")
    rho = stats.spearmanr([126.02, 107.14, 145.04, 83.29, 40.95], [88, 92, 89, 83, 78])[0]
    assert own.correlation is not None and own.correlation.value == pytest.approx(rho)
    told = [line for line in found.warnings if "perplexity" in line]
    assert [line.partition(":")[0] for line in told] == ["reap", "rm", "random"]
    assert "15.09% higher than native's, and accuracy is higher too: +1.00 points" in told[0]
    one = compare_runs(base, [made("mesa", 107.14, 92)])
    assert one.beside[0].disagree == () and not one.warnings
    two = compare_runs(base, [made("mesa", 107.14, 92), made("reap", 145.04, 80)])
    assert one.beside[0].correlation is None and two.beside[0].correlation is None


@pytest.mark.parametrize(("won", "told"), [(3, False), (30, True)])
def test_a_task_contradicts_perplexity_only_where_it_surely_changed(won: int, told: bool) -> None:
    """Perplexity is higher, all questions together are worse, and one task is better."""
    base = run(
        "n", answers("mmlu", "1" * 100), answers("arc", "1" * 50 + "0" * 50), texts("w", [5, 6, 7])
    )
    other = run(
        "v",
        answers("mmlu", "0" * 60 + "1" * 40),
        answers("arc", "1" * (50 + won) + "0" * (50 - won)),
        texts("w", [6, 7, 9]),
    )
    found = compare_runs(base, [other])
    assert {one.task: one.disagree for one in found.beside} == {
        None: (),
        "mmlu": (),
        "arc": ("v",),
    }
    lines = [line for line in found.warnings if "perplexity" in line]
    assert ["on arc" in line for line in lines] == ([True] if told else [])


def test_texts_that_were_cut_otherwise_have_no_common_perplexity() -> None:
    base = run("native", texts("wiki", [5.0, 6.0], tokens=10))
    other = run(
        "v",
        [
            replace(row, details={**row.details, "tokens": 11, "bytes": 40})
            for row in texts("wiki", [5.0, 7.0])
        ],
    )
    found = compare_runs(base, [other]).variants[0].perplexity["wiki"]
    assert found.tokens == 80  # bytes, which both share


def identical(**values: Any) -> Run:
    return run("v", answers("t", "1101"), **values)


@pytest.mark.parametrize(
    ("probes", "told"),
    [
        (({}, {}), "answers every question (4) exactly as native does"),
        (
            ({"inputs": "i", "logits": "l"},) * 2,
            "the same answers and the same logits as native, bit for bit",
        ),
        (({"inputs": "i", "logits": "l"}, {"inputs": "i", "logits": "m"}), None),
        (
            ({"inputs": "i", "logits": "l"}, {"inputs": "j", "logits": "m"}),
            "answers every question (4)",
        ),
    ],
)
def test_a_variant_to_which_nothing_was_done_is_noticed(
    probes: tuple[dict[str, str], dict[str, str]], told: str | None
) -> None:
    base = replace(identical(probe=probes[0]), name="native")
    found = compare_runs(base, [identical(probe=probes[1])])
    assert [told in line for line in found.warnings] == ([True] if told else [])  # type: ignore[operator]
    itself = compare_runs(base, [identical(probe=probes[1])], same=[True])
    assert itself.warnings == ("v is the base itself; every difference is 0.",)


@pytest.mark.parametrize("probe", [{}, {"inputs": "i", "logits": "l"}])
def test_one_other_answer_is_no_identical_run(probe: dict[str, str]) -> None:
    """Even of the same probe: none of its tokens may visit what was removed."""
    base = run("n", answers("t", "1101"), probe=probe)
    assert not compare_runs(base, [run("v", answers("t", "1100"), probe=probe)]).warnings


def test_other_number_types_and_guards_are_told() -> None:
    def told(**values: str) -> dict[str, str]:
        return {"name": "below-expected", "level": "warn", "task": "t", "text": "low.", **values}

    guards = (
        told(),
        told(text="low again."),
        told(name="resolution", text="few."),
        told(name="budget", text="of a run that is not compared."),
        told(task="x", text="of x."),
        told(level="stop"),
    )
    base = run("n", answers("t", "1100"), provenance={"dtype": "bfloat16"}, guards=guards)
    other = run("v", answers("t", "1000"), provenance={"dtype": "float32"}, guards=(told(),))
    assert compare_runs(base, [other]).warnings == (
        "low. (1 more of this kind.)",
        "v was run in float32 and n in bfloat16: part of the difference may be the number type's.",
    )


@pytest.mark.parametrize(
    ("protocol", "words"),
    [
        ({"max_new_tokens": 64}, "near the budget of 64"),
        ({"max_new_tokens": 640}, None),
        ({"parts": {"t": {"max_new_tokens": 64}}}, "near the budget of 64"),
        ("odd", None),
        ({"parts": {"t": 3, "u": {}}, "max_new_tokens": "x"}, None),
    ],
)
def test_answers_near_their_budget_are_told_of_the_runs_compared(
    protocol: Any, words: str | None
) -> None:
    told = {"t": {"kind": "generate", "protocol": protocol}}
    written = {"truncated": False, "tokens": lambda place: 60 + place}
    base = run("n", answers("t", "1100", truncated=False, tokens=5), tasks=told)
    found = compare_runs(base, [run("v", answers("t", "1000", **written), tasks=told)])
    assert [words in line for line in found.warnings] == ([True] if words else [])  # type: ignore[operator]


def test_a_base_near_chance_and_unbalanced_letters_are_seen_in_any_answers() -> None:
    def rows(right: str, letters: str = "ABCD") -> list[Sample]:
        return [
            replace(
                row,
                details={"choices": 4},
                answer="ABCD"[place // 4 % 4],
                prediction=letters[place // 4 % 4]
                if mark == "1"
                else letters[(place // 4 + 1) % 4],
            )
            for place, (row, mark) in enumerate(zip(answers("arc", right), right, strict=True))
        ]

    poor, good = "1000" * 24, "1110" * 24
    found = compare_runs(run("n", rows(poor)), [run("v", rows(good))])
    assert len(found.warnings) == 1
    assert "n answers 24 of 96 right (25.0%), no better than guessing" in found.warnings[0]
    assert not compare_runs(run("n", rows(good)), [run("v", rows(poor))]).warnings
    found = compare_runs(run("n", rows(good)), [run("v", rows(good, "ABBD"))])
    assert any("the letters that v chooses are not spread" in line for line in found.warnings)


def test_a_limit_finds_what_lost_more() -> None:
    right = "1" * 150 + "0" * 50
    base = run("n", answers("a", right, domains=("x", "y")), answers("b", "1" * 100))
    good = run(
        "good", answers("a", flipped(right, 2, 0), domains=("x", "y")), answers("b", "1" * 100)
    )
    bad = run(
        "bad",
        answers("a", flipped(right, 11, 1), domains=("x", "y")),
        answers("b", "0" * 1 + "1" * 99),
    )

    def found(points: float, **values: Any) -> list[tuple[str, str | None, float]]:
        limit = Limit(points=points, **values)
        return [
            (one.variant, one.domain or one.task, round(one.points, 6))
            for one in compare_runs(base, [good, bad], limit=limit).regressions
        ]

    assert found(0) == [("good", "a", -1.0), ("bad", "a", -5.0), ("bad", "b", -1.0)]
    assert found(1) == [("bad", "a", -5.0)]  # exactly the limit is allowed
    assert found(0.99) == [("good", "a", -1.0), ("bad", "a", -5.0), ("bad", "b", -1.0)]
    assert found(0, significant=True) == [("bad", "a", -5.0)]
    assert found(5) == []
    assert found(1, by="domain") == [("bad", "y", -5.0), ("bad", "x", -5.0)]
    assert found(3, by="overall") == [("bad", None, round(-100 * 11 / 300, 6))]
    for points in (-1, math.nan, math.inf):
        with pytest.raises(UsageError, match="no limit"):
            Limit(points=points)
    with pytest.raises(UsageError, match="no way to look"):
        Limit(points=1, by="question")


def test_what_is_significant_is_so_after_the_correction() -> None:
    """Six flips one way: p = 0.031 alone, and 0.063 as one of two."""
    base = run("n", answers("t", "1" * 50))
    alone = compare_runs(base, [run("v", answers("t", flipped("1" * 50, 6, 0)))])
    assert alone.variants[0].tasks["t"].overall.significant
    limit = Limit(points=1, significant=True)
    variants = [run("v", answers("t", flipped("1" * 50, 6, 0))), run("w", answers("t", "1" * 50))]
    found = compare_runs(base, variants, limit=limit)
    assert not found.variants[0].tasks["t"].overall.significant and found.regressions == ()
    assert found.variants[0].tasks["t"].overall.p < 0.05


@pytest.mark.parametrize("missing", ["answer", "task"])
def test_a_limit_is_not_passed_by_leaving_questions_out(missing: str) -> None:
    base = run("n", answers("a", "1111"), answers("b", "11"))
    rest = answers("b", "11") if missing == "answer" else []
    other = run("v", answers("a", "111" if missing == "answer" else "1111"), rest)
    assert compare_runs(base, [other]).warnings
    with pytest.raises(MismatchError, match=r"v has no answer to [12] of the base's questions"):
        compare_runs(base, [other], limit=Limit(points=1))
    shared = ["b"] if missing == "answer" else ["a"]
    compare_runs(base, [other], tasks=shared, limit=Limit(points=1))


def test_the_trade_off_of_the_papers_tables() -> None:
    sizes = {"aime": 30, "gsm8k": 100, "arc_c": 100, "arc_e": 100}
    base_right = {"aime": 23, "gsm8k": 89, "arc_c": 95, "arc_e": 98}
    changes = {
        "mesa": (-4, 4, -3, -1),
        "reap": (-1, 0, -4, -3),
        "rm": (-9, -6, -1, -1),
        "random": (-13, -10, -5, -2),
    }

    def made(name: str, change: tuple[int, ...]) -> Run:
        groups = [
            answers(task, "1" * (base_right[task] + more) + "0" * (size - base_right[task] - more))
            for (task, size), more in zip(sizes.items(), change, strict=True)
        ]
        return run(name, *groups)

    base, variants = made("native", (0,) * 4), [made(*item) for item in changes.items()]
    groups = {"reasoning": ["aime", "gsm8k"], "knowledge": ["arc_c", "arc_e"]}
    found = compare_runs(base, variants, clusters=groups).tradeoff
    assert found is not None
    expected = [
        [100 * change / size for change, size in zip(row, sizes.values(), strict=True)]
        for row in changes.values()
    ]
    assert found.table.delta_VT == pytest.approx(np.array(expected))
    assert found.deltas["reasoning"] == pytest.approx([np.mean(row[:2]) for row in expected])
    assert found.deltas["knowledge"] == pytest.approx([np.mean(row[2:]) for row in expected])
    # A loss of half the largest is large: 13.3 points of reasoning, 1.75 of knowledge.
    words = ("reasoning-preserving", "reasoning-preserving", "knowledge-preserving", "losing both")
    assert found.characters == words
    body = compare_runs(base, variants).to_json()["tradeoff"]
    assert body["clusters_found"] is True
    assert sorted(itertools.chain(*body["clusters"].values())) == sorted(sizes)
    json.dumps(body, allow_nan=False)
    assert compare_runs(base, variants[:2]).tradeoff is None
    with pytest.raises(UsageError, match="there are 2 and 4"):
        compare_runs(base, variants[:2], clusters=groups)
    with pytest.raises(UsageError, match="no task mmlu"):
        compare_runs(base, variants, clusters={**groups, "knowledge": ["mmlu"]})


def test_a_task_without_scores_is_told_and_nothing_at_all_refused() -> None:
    bare = [
        replace(row, correct=None, metrics={"f1": 0.5, "bleu": 0.25})
        for row in answers("free", "101")
    ]
    found = compare_runs(run("n", bare, answers("t", "10")), [run("v", bare, answers("t", "00"))])
    line = "task free has no right and wrong, and is not compared; --metric names one of bleu, f1."
    assert found.warnings == (line,)
    assert list(found.variants[0].tasks) == ["t"]
    assert list(compare_runs(run("n", bare), [run("v", bare)], metric=["f1"]).summary) == ["free"]
    with pytest.raises(UsageError, match="nothing to compare"):
        compare_runs(run("n", bare), [run("v", bare)])


def test_wrong_options_are_refused() -> None:
    base, other = run("n", answers("t", "1")), run("v", answers("t", "0"))
    for level in (0, 1, -1, 2, math.nan):
        with pytest.raises(UsageError, match="level"):
            compare_runs(base, [other], level=level)
    with pytest.raises(UsageError, match="nothing to compare"):
        compare_runs(base, [])
    with pytest.raises(UsageError, match="no task of n named"):
        compare_runs(base, [other], tasks=["x"])
    with pytest.raises(UsageError, match="no task was named"):
        compare_runs(base, [other], tasks=[])
