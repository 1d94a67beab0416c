"""What a scan of k₁ and k₂ says in words: the best k₂, how far to trust it, what to run next.

After "Halving the Activated Experts of a MoE Without Training", sections 6.3 and 9: an optimum on
the edge of a scan is not a result, and perplexity alone has picked significantly worse points.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from moeprune.core.scan_grid import FOLDED, Axes
from moeprune.core.scan_picks import TEXT, Pick, best, by_tasks, compared, rows_of_k1
from moeprune.core.scan_rows import Row, TaskFigures
from moeprune.core.scan_verdict import WORKS, FamilyVerdict
from moeprune.core.scan_words import advice, change, listed, named, percent, task_change

_NEAR = 0.05  # of native's perplexity, without tasks: a first sieve, no verdict
Paired = Callable[[str, str, str], TaskFigures]
"""(row, other row, task) -> the second against the first, on the same questions."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One thing that is said.

    Attributes:
        name: ``verdict``, ``best``, ``edge``, ``carries-over``, ``unvalidated``, ``disagree``,
            ``folded``, ``recommended``, ``none``.
        k1: that it is about; None: the whole scan.
        k2: that is to be scanned too (``edge``) or exported (``recommended``); None: neither.
        text: one line.
    """

    name: str
    text: str
    k1: int | None = None
    k2: int | None = None


def findings(
    rows: Sequence[Row],
    picks: Sequence[Pick],
    *,
    axes: Axes,
    verdict: FamilyVerdict,
    family: str,
    paired: Paired,
) -> tuple[Finding, ...]:
    """Everything there is to say, in the order to read it.

    Args:
        rows: of the scan, the native model first.
        picks: see :func:`moeprune.core.scan_picks.picks_of`.
        axes: of the grid.
        verdict: what was expected.
        family: the model's.
        paired: compares two rows on one task.
    """
    found = [Finding(name="verdict", text=verdict.said(family))]
    texts, tasks = list(rows[0].texts), list(rows[0].tasks)
    for k1 in dict.fromkeys(pick.k1 for pick in picks):
        own = [pick for pick in picks if pick.k1 == k1]
        found += _best(rows, own, texts)
        found += _edges(own)
        found += _disagreements(rows, own, texts, paired)
        found += _folded(rows, k1, texts)
    if texts and not tasks:
        found.append(
            Finding(
                name="unvalidated",
                text="perplexity alone does not validate a k2: in the paper (section 6.3) it "
                "picked one that lost 1.1 points of MMLU (p = 0.021). Give --tasks.",
            )
        )
    found.append(_recommended(rows, axes, texts, tasks, verdict))
    return tuple(found)


def _best(rows: Sequence[Row], picks: Sequence[Pick], texts: Sequence[str]) -> Iterator[Finding]:
    """The best k₂ of one k₁, by the held-out text and by each task."""
    (k1,) = {pick.k1 for pick in picks}
    default = next((row for row in compared(rows, k1) if row.point.default), None)
    for pick in picks:
        if pick.by in texts[:-1]:
            continue  # the tuning text; what is held out speaks
        row = best(rows, k1, pick.by)
        how = "lowest" if pick.kind == TEXT else "best"
        said = f"{named(pick.by)} is {how} at k2={pick.k2} ({change(row, pick.by)})"
        if default is not None and default is not row:
            lowered = " reduction" if k1 <= rows[0].point.k1 else ""
            said += f"; the default{lowered}, k2={default.point.k2}: {change(default, pick.by)}"
        tuned = next((one for one in picks if one.by in texts[:-1]), pick)
        if pick.kind == TEXT and tuned.k2 != pick.k2:
            said += f". The tuning text picks k2={tuned.k2}: the choice does not carry over"
        if pick.ties:
            said += f"; as good: {', '.join(f'k2={k2}' for k2 in pick.ties)}"
        yield Finding(name="best", k1=k1, k2=pick.k2, text=f"k1={k1}: {said}.")


def _edges(picks: Sequence[Pick]) -> Iterator[Finding]:
    told: dict[tuple[int, int], list[Pick]] = {}
    for pick in picks:
        if pick.extend is not None:
            told.setdefault((pick.k2, pick.extend), []).append(pick)
    for (k2, extend), same in told.items():
        yield Finding(
            name="edge",
            k1=same[0].k1,
            k2=extend,
            text=f"k1={same[0].k1}: the best k2 by {listed([named(one.by) for one in same])} lies "
            f"on the edge of the scan (k2={k2}), which is no result: extend and rescan, with "
            f"--k2 {extend} too.",
        )


def _disagreements(
    rows: Sequence[Row], picks: Sequence[Pick], texts: Sequence[str], paired: Paired
) -> Iterator[Finding]:
    """Where the held-out text and a task pick different k₂, and what that costs the task."""
    ours = next((pick for pick in picks if texts and pick.by == texts[-1]), None)
    if ours is None:
        return
    for pick in picks:
        if pick.kind == TEXT or ours.k2 in (pick.k2, *pick.ties):
            continue
        one, other = best(rows, pick.k1, pick.by), best(rows, pick.k1, ours.by)
        cost = paired(one.point.name, other.point.name, pick.by)
        yield Finding(
            name="disagree",
            k1=pick.k1,
            text=f"k1={pick.k1}: perplexity picks k2={ours.k2} and {named(pick.by)} k2={pick.k2}. "
            f"The former against the latter: {task_change(cost)}; {advice(cost)}.",
        )


def _folded(rows: Sequence[Row], k1: int, texts: Sequence[str]) -> Iterator[Finding]:
    """What folding a gain costs against the policy that it stands for."""
    folds = [row for row in rows_of_k1(rows, k1) if row.point.kind == FOLDED]
    if not folds or not texts:
        return
    said = []
    for row in folds:
        live = next(one for one in compared(rows, k1) if one.point.k2 == row.point.k2)
        ratio = row.texts[texts[-1]].perplexity / live.texts[texts[-1]].perplexity
        said.append(f"k2={row.point.k2} {percent(ratio)}")
    yield Finding(
        name="folded",
        k1=k1,
        text=f"k1={k1}: folding the gain into the weights costs, in {named(texts[-1])} against the "
        f"policy itself: {', '.join(said)}.",
    )


def _recommended(
    rows: Sequence[Row],
    axes: Axes,
    texts: Sequence[str],
    tasks: Sequence[str],
    verdict: FamilyVerdict,
) -> Finding:
    """The smallest k₁ whose best k₂ loses nothing that shows."""
    most = axes.native.k1  # what runs more experts than native saves nothing
    k1s = sorted({row.point.k1 for row in rows if row.point.compared and row.point.k1 <= most})
    if not k1s:
        text = f"every k1 that was scanned runs more experts than native: give a --k1 below {most}."
        return Finding(name="none", text=text)
    chosen = [by_tasks(rows, k1, texts) if tasks else best(rows, k1, texts[-1]) for k1 in k1s]
    chosen = [row for row in chosen if row.point.policy is not None]
    if not chosen:
        return Finding(name="none", text="the model's own routing is the best of all: keep it.")
    if not tasks:
        return _unchecked(chosen, texts[-1])
    lost = [task for task in tasks if not rows[0].tasks[task].accuracy]
    if len(lost) == len(tasks):
        text = (
            f"native answers nothing right of {listed([named(task) for task in lost])}, so no loss "
            "can show: check the protocol (template, shots, budget), or ask something else."
        )
        return Finding(name="none", text=text)
    for row in chosen:
        if not any(figures.worse for figures in row.tasks.values()):
            bound = _bound(row)
            return Finding(
                name="recommended",
                k1=row.point.k1,
                k2=row.point.k2,
                text=f"k1={row.point.k1} k2={row.point.k2} is not distinguishable from native on "
                f"{listed([named(task) for task in tasks])}{bound}.",
            )
    tried = max(row.point.k1 for row in chosen)
    way_out = f"try a larger --k1, as {tried + 1}" if tried + 1 < most else "keep native"
    expected = "" if verdict.expected == WORKS else ", as was expected of the family"
    return Finding(
        name="none",
        text=f"every k1 that was scanned is surely worse than native at its best k2{expected}: "
        f"{way_out}.",
    )


def _bound(row: Row) -> str:
    """What the questions of a row could not have shown."""
    blind = [task for task, figures in row.tasks.items() if not figures.resolves]
    if blind:
        return f", but {listed([named(task) for task in blind])} can show no change: ask more"
    hidden = max(figures.resolves or 0.0 for figures in row.tasks.values())
    return f"; changes below {hidden:.1f} points would not have shown"


def _unchecked(chosen: Sequence[Row], split: str) -> Finding:
    """Where no task was asked: the smallest k₁ that stays near native's perplexity."""

    def ratio(row: Row) -> float:
        return row.texts[split].ratio or 1.0

    near = [row for row in chosen if ratio(row) <= 1 + _NEAR]
    row = near[0] if near else min(chosen, key=ratio)
    point = row.point
    where = f"k1={point.k1} k2={point.k2} ({percent(ratio(row))})"
    said = (
        f"{where} is the smallest k1 within {_NEAR:.0%} of native's {named(split)}"
        if near
        else f"no k1 comes within {_NEAR:.0%} of native's {named(split)}; the nearest is {where}"
    )
    return Finding(
        name="recommended",
        k1=point.k1,
        k2=point.k2,
        text=f"{said}; check it on tasks before you export it.",
    )
