"""What a scan says in words, of figures that are made up."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.core.policy import RoutingPolicy
from moeprune.core.scan_findings import Finding, findings
from moeprune.core.scan_grid import Axes, folded, grid
from moeprune.core.scan_picks import Pick, picks_of
from moeprune.core.scan_rows import Row, TaskFigures, TextFigures
from moeprune.core.scan_verdict import family_verdict

TUNING, HELD_OUT = "perplexity-tuning", "perplexity-held-out"


def axes(**more: Any) -> Axes:
    return Axes(
        native=RoutingPolicy(k1=4, k2=4),
        renormalises=True,
        experts=16,
        **{"reach": 16, **more},
    )


def rows(
    spanned: Axes,
    held_out: Mapping[tuple[int, int], float],
    tasks: Mapping[str, Mapping[tuple[int, int], float]] | None = None,
    *,
    tuning: Mapping[tuple[int, int], float] | None = None,
    worse: Sequence[tuple[int, int]] = (),
) -> list[Row]:
    """Rows of the grid; of the native pair the figures are 10 and 0.9 where none are given."""
    found = []
    for point in grid(spanned):
        pair = (point.k1, point.k2)
        value = held_out.get(pair, 10.0)
        texts = {
            TUNING: TextFigures(perplexity=(tuning or held_out).get(pair, 10.0)),
            HELD_OUT: TextFigures(
                perplexity=value, ratio=None if point.policy is None else value / 10
            ),
        }
        figures = {}
        for name, accuracies in (tasks or {}).items():
            accuracy = accuracies.get(pair, 0.9)
            against: dict[str, Any] = (
                {}
                if point.policy is None
                else {
                    "points": 100 * (accuracy - 0.9),
                    "lost": 12,
                    "won": 5,
                    "p_holm": 0.01 if pair in worse else 0.5,
                    "resolves": 1.3,
                }
            )
            figures[name] = TaskFigures(questions=1000, accuracy=accuracy, **against)
        found.append(Row(point=point, gain=1.0, gain_L=(), texts=texts, tasks=figures, cost={}))
    return found


def said(spanned: Axes, table: list[Row], *, p: float = 0.02) -> list[Finding]:
    def paired(one: str, other: str, task: str) -> TaskFigures:
        of = {row.point.name: row.tasks[task].accuracy for row in table}
        points = 100 * (of[other] - of[one])
        return TaskFigures(questions=1000, accuracy=of[other], points=points, lost=30, won=8, p=p)

    found = findings(
        table,
        picks_of(table, spanned),
        axes=spanned,
        verdict=family_verdict("qwen3_moe", "softmax", renormalises=True),
        family="qwen3_moe",
        paired=paired,
    )
    assert all("\n" not in one.text and one.text.endswith(".") for one in found)
    return list(found)


def of_name(found: list[Finding], name: str) -> list[str]:
    return [one.text for one in found if one.name == name]


def test_perplexity_alone_is_not_enough() -> None:
    found = said(axes(), rows(axes(), {(2, 2): 12, (2, 3): 10.9, (2, 4): 10.4, (2, 8): 11.5}))
    assert of_name(found, "best") == [
        "k1=2: held-out perplexity is lowest at k2=4 (10.400, +4.00% against native); the default "
        "reduction, k2=2: 12.000, +20.00% against native."
    ]
    assert "(section 6.3)" in of_name(found, "unvalidated")[0]
    assert "Give --tasks" in of_name(found, "unvalidated")[0]
    (last,) = [one for one in found if one.name == "recommended"]
    assert (last.k1, last.k2) == (2, 4)
    assert last.text == (
        "k1=2 k2=4 (+4.00%) is the smallest k1 within 5% of native's held-out perplexity; check it "
        "on tasks before you export it."
    )
    assert not of_name(found, "edge") and not of_name(found, "disagree")
    assert found[0].text.startswith(
        "a k2 above k1 is expected to work for qwen3_moe: its softmax gate"
    )


@pytest.mark.parametrize(
    ("figures", "k2", "extend"),
    [
        ({(2, 2): 12, (2, 3): 11, (2, 4): 10.5, (2, 8): 10.2}, 8, 16),
        ({(2, 2): 10.1, (2, 3): 11, (2, 4): 12, (2, 8): 13}, 2, 1),
    ],
)
def test_an_optimum_on_the_edge(
    figures: dict[tuple[int, int], float], k2: int, extend: int
) -> None:
    found = said(axes(), rows(axes(), figures))
    (edge,) = [one for one in found if one.name == "edge"]
    assert (edge.k1, edge.k2) == (2, extend)
    # Both splits pick it: said once.
    assert edge.text == (
        "k1=2: the best k2 by tuning perplexity and held-out perplexity lies on the edge of the "
        f"scan (k2={k2}), which is no result: extend and rescan, with --k2 {extend} too."
    )


def test_an_edge_that_is_no_better_than_the_inside_is_none() -> None:
    task = dict.fromkeys(((2, 2), (2, 3), (2, 4), (2, 8)), 0.9)
    held_out = {(2, 2): 10.0, (2, 3): 11, (2, 4): 12, (2, 8): 13}
    found = said(axes(), rows(axes(), held_out, {"t": task}))
    (edge,) = [one for one in found if one.name == "edge"]
    assert "tuning perplexity and held-out perplexity lies on the edge" in edge.text
    assert "task t is best at k2=2" in of_name(found, "best")[1]


def test_nothing_lies_beyond_all_experts() -> None:
    spanned = axes(k2=["E"])
    table = rows(spanned, {(2, 2): 12, (2, 3): 11, (2, 4): 10.5, (2, 8): 10.2, (2, 16): 10.1})
    assert not of_name(said(spanned, table), "edge")
    # Groups hold 8: beyond them there are only all.
    limited = axes(reach=8)
    table = rows(limited, {(2, 2): 12, (2, 3): 11, (2, 4): 10.5, (2, 8): 10.2})
    assert [one.k2 for one in said(limited, table) if one.name == "edge"] == [16]


def test_the_two_splits_disagree() -> None:
    held_out = {(2, 2): 12, (2, 3): 10.5, (2, 4): 10.4, (2, 8): 11}
    table = rows(axes(), held_out, tuning={**held_out, (2, 3): 10.3})
    (best,) = of_name(said(axes(), table), "best")
    assert best.endswith("The tuning text picks k2=3: the choice does not carry over.")


def test_perplexity_and_a_task_disagree() -> None:
    held_out = {(2, 2): 12, (2, 3): 10.4, (2, 4): 10.5, (2, 8): 11}
    task = {(2, 2): 0.8, (2, 3): 0.87, (2, 4): 0.89, (2, 8): 0.85}
    table = rows(axes(), held_out, {"größe": task}, worse=[(2, 2)])
    found = said(axes(), table)
    assert of_name(found, "disagree") == [
        "k1=2: perplexity picks k2=3 and task größe k2=4. The former against the latter: 87.00%, "
        "-2.00 points, lost/won 30/8, p = 0.020; do not choose by perplexity."
    ]
    (recommended,) = [one for one in found if one.name == "recommended"]
    assert (recommended.k1, recommended.k2) == (2, 4)
    assert recommended.text == (
        "k1=2 k2=4 is not distinguishable from native on task größe; changes below 1.3 points "
        "would not have shown."
    )
    assert not of_name(found, "unvalidated")
    assert of_name(said(axes(), table, p=0.4), "disagree")[0].endswith("this may be chance.")


def test_equals_are_no_disagreement() -> None:
    held_out = {(2, 2): 12, (2, 3): 10.4, (2, 4): 10.5, (2, 8): 11}
    task = {(2, 2): 0.8, (2, 3): 0.89, (2, 4): 0.89, (2, 8): 0.85}
    found = said(axes(), rows(axes(), held_out, {"t": task}))
    assert not of_name(found, "disagree")
    (_, best) = of_name(found, "best")
    assert "task t is best at k2=3" in best and best.endswith("as good: k2=4.")


def test_the_smallest_k1_that_loses_nothing_is_recommended() -> None:
    spanned = axes(k1=[3, 1, 2])
    held_out = dict.fromkeys(((1, 2), (2, 3), (3, 4)), 10.5)
    task = {(1, 2): 0.7, (2, 3): 0.895, (3, 4): 0.899, **dict.fromkeys([(1, 1), (2, 2)], 0.5)}
    task |= dict.fromkeys([(1, 4), (1, 8), (2, 4), (2, 8), (3, 3), (3, 8)], 0.6)
    table = rows(spanned, held_out, {"t": task}, worse=[(1, 2)])
    (found,) = [one for one in said(spanned, table) if one.name == "recommended"]
    assert (found.k1, found.k2) == (2, 3)
    table = rows(spanned, held_out, {"t": task}, worse=[(1, 2), (2, 3), (3, 4)])
    assert of_name(said(spanned, table), "none") == [
        "every k1 that was scanned is surely worse than native at its best k2: keep native."
    ]
    spanned = axes(k1=[1])
    table = rows(spanned, held_out, {"t": task}, worse=[(1, 2)])
    assert "try a larger --k1, as 2" in of_name(said(spanned, table), "none")[0]


def test_native_is_never_recommended_as_an_export() -> None:
    spanned = axes(k1=[4])
    table = rows(spanned, {(4, 5): 11, (4, 8): 12}, {"t": {(4, 5): 0.8, (4, 8): 0.7}})
    found = said(spanned, table)
    assert not of_name(found, "recommended") and of_name(found, "none")


def test_what_a_fold_costs() -> None:
    table = rows(axes(), {(2, 2): 12, (2, 3): 11, (2, 4): 10, (2, 8): 11})
    point = next(row.point for row in table if row.point.k2 == 4 and row.point.k1 == 2)
    texts = {name: TextFigures(perplexity=10.2, ratio=1.02) for name in (TUNING, HELD_OUT)}
    row = Row(
        point=folded(point, RoutingPolicy(k1=2, k2=2, gain=0.5)),
        gain=None,
        gain_L=(),
        texts=texts,
        tasks={},
        cost={},
    )
    assert of_name(said(axes(), [*table, row]), "folded") == [
        "k1=2: folding the gain into the weights costs, in held-out perplexity against the policy "
        "itself: k2=4 +2.00%."
    ]


def test_without_tasks_a_k1_near_native_is_named() -> None:
    spanned = axes(k1=[1, 2, 3])
    figures = {(1, 2): 20.0, (2, 3): 10.4, (3, 4): 10.1}
    far = dict.fromkeys([(point.k1, point.k2) for point in grid(spanned)[1:]], 30.0)
    (found,) = [
        one
        for one in said(spanned, rows(spanned, far | figures))
        if one.k2 and one.name == "recommended"
    ]
    assert (found.k1, found.k2) == (2, 3)
    table = rows(spanned, far | {(1, 2): 20.0, (2, 3): 14, (3, 4): 12})
    (found,) = [one for one in said(spanned, table) if one.name == "recommended"]
    assert found.text.startswith(
        "no k1 comes within 5% of native's held-out perplexity; the nearest is k1=3 k2=4 (+20.00%)"
    )


@given(data=st.data())
def test_picks_are_the_best_there_are(data: st.DataObject) -> None:
    spanned = axes(k1=data.draw(st.lists(st.integers(1, 16), min_size=1, max_size=3)), k2=["E", 6])
    value = st.sampled_from([1.0, 2.0, 3.0, 1e9])
    share = st.sampled_from([0.25, 0.5, 0.75])
    every = [(point.k1, point.k2) for point in grid(spanned)]
    held_out = {pair: data.draw(value) for pair in every}
    tuning = {pair: data.draw(value) for pair in every}
    task = {pair: data.draw(share) for pair in every}
    table = rows(spanned, held_out, {"t": task}, tuning=tuning)
    picks = picks_of(table, spanned)
    said(spanned, table)  # whatever the figures: one line each
    tables = {TUNING: tuning, HELD_OUT: held_out, "t": {pair: -task[pair] for pair in every}}
    assert {(pick.k1, pick.by) for pick in picks} == {
        (k1, by) for k1 in {pair[0] for pair in every[1:]} for by in tables
    }
    for pick in picks:
        assert_best(pick, {pair[1]: v for pair, v in tables[pick.by].items() if pair[0] == pick.k1})


def assert_best(pick: Pick, figures: Mapping[int, float]) -> None:
    least = min(figures.values())
    equals = {k2 for k2, value in figures.items() if value == least}
    assert {pick.k2, *pick.ties} == equals and pick.k2 not in pick.ties
    assert abs(pick.value) == abs(least)
    low, high = pick.k2 == min(figures), pick.k2 == max(figures)
    if any(min(figures) < k2 < max(figures) for k2 in equals):
        assert pick.edge == "" and pick.extend is None
    elif high and pick.k2 < 16:
        assert pick.edge == "high" and pick.extend == min(2 * pick.k2, 16)
    elif low and pick.k2 > 1:
        assert pick.edge == "low" and pick.extend == pick.k2 - 1
    else:
        assert pick.edge == "" and pick.extend is None


def test_where_native_answers_nothing_no_loss_can_show() -> None:
    spanned = axes()
    every = {(point.k1, point.k2): 0.0 for point in grid(spanned)}
    (found,) = of_name(said(spanned, rows(spanned, {}, {"t": every})), "none")
    assert found.startswith("native answers nothing right of task t, so no loss can show: check")
    both = rows(spanned, {}, {"t": every, "u": {**every, (4, 4): 0.9}})
    assert not [text for text in of_name(said(spanned, both), "none") if "no loss" in text]


def test_what_runs_more_than_native_is_not_recommended() -> None:
    spanned = axes(k1=[8])
    table = rows(spanned, {(8, 8): 9, (8, 4): 9.5, (8, 9): 9.1})
    found = said(spanned, table)
    assert of_name(found, "none") == [
        "every k1 that was scanned runs more experts than native: give a --k1 below 4."
    ]
    assert not of_name(found, "recommended")
    assert "; the default" not in of_name(found, "best")[0]
    worse = rows(spanned, {(8, 8): 9.3, (8, 4): 9.5, (8, 9): 9.1})
    assert "; the default, k2=8: 9.300" in of_name(said(spanned, worse), "best")[0]


def test_questions_that_show_nothing_recommend_nothing_silently() -> None:
    table = rows(axes(), {}, {"few": {}, "more": {}})
    blind = [
        replace(row, tasks={**row.tasks, "few": replace(row.tasks["few"], resolves=None)})
        for row in table
    ]
    (text,) = of_name(said(axes(), blind), "recommended")
    assert text.endswith("task few and task more, but task few can show no change: ask more.")
