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
    found = [Finding(name="verdict", text=f"{family} is {verdict.text}.")]
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
        said = f"{named(pick.by)} is {how} at k2={pick.k2} ({_change(row, pick.by)})"
        if default is not None and default is not row:
            said += f"; the default reduction, k2={default.point.k2}: {_change(default, pick.by)}"
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
            text=f"k1={same[0].k1}: the best k2 by {_listed([named(one.by) for one in same])} lies "
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
            f"The former against the latter: {_task_change(cost)}; {_advice(cost)}.",
        )


def _advice(cost: TaskFigures) -> str:
    p = cost.p if cost.p_holm is None else cost.p_holm
    return "this may be chance" if p is None or p >= 0.05 else "do not choose by perplexity"


def _folded(rows: Sequence[Row], k1: int, texts: Sequence[str]) -> Iterator[Finding]:
    """What folding a gain costs against the policy that it stands for."""
    for row in rows_of_k1(rows, k1):
        if row.point.kind != FOLDED or not texts:
            continue
        live = next(one for one in compared(rows, k1) if one.point.k2 == row.point.k2)
        ratio = row.texts[texts[-1]].perplexity / live.texts[texts[-1]].perplexity
        yield Finding(
            name="folded",
            k1=k1,
            k2=row.point.k2,
            text=f"k1={k1}: with the gain of k2={row.point.k2} folded into the weights, "
            f"{named(texts[-1])} is {_percent(ratio)} against the policy itself.",
        )


def _recommended(
    rows: Sequence[Row],
    axes: Axes,
    texts: Sequence[str],
    tasks: Sequence[str],
    verdict: FamilyVerdict,
) -> Finding:
    """The smallest k₁ whose best k₂ loses nothing that shows."""
    chosen = []
    for k1 in sorted({row.point.k1 for row in rows if row.point.compared}):
        row = by_tasks(rows, k1, texts) if tasks else best(rows, k1, texts[-1])
        chosen.append(row)
        if row.point.policy is None or any(one.worse for one in row.tasks.values()):
            continue
        point = row.point
        if not tasks:
            said = (
                f"k1={point.k1} k2={point.k2} has the lowest {named(texts[-1])}; check it on tasks "
                "before you export it"
            )
        else:
            hidden = [figures.resolves for figures in row.tasks.values() if figures.resolves]
            bound = (
                f"; changes below {max(hidden):.1f} points would not have shown" if hidden else ""
            )
            said = (
                f"k1={point.k1} k2={point.k2} is not distinguishable from native on "
                f"{_listed([named(task) for task in tasks])}{bound}"
            )
        return Finding(name="recommended", k1=point.k1, k2=point.k2, text=f"{said}.")
    if not chosen:
        return Finding(name="none", text="only the model's own routing was scanned: lower --k1.")
    most = max(row.point.k1 for row in chosen)
    way_out = f"try a larger --k1, as {most + 1}" if most + 1 < axes.native.k1 else "keep native"
    expected = "" if verdict.expected == WORKS else ", as was expected of the family"
    return Finding(
        name="none",
        text=f"every k1 that was scanned is surely worse than native at its best k2{expected}: "
        f"{way_out}.",
    )


def shown(perplexity: float) -> str:
    """With as many digits as tell two apart."""
    return f"{perplexity:,.3f}" if perplexity < 1e5 else f"{perplexity:.4g}"


def named(by: str) -> str:
    """``held-out perplexity`` of ``perplexity-held-out``; ``task mmlu`` of a task."""
    head, dash, rest = by.partition("-")
    return f"{rest} {head}" if dash and head == TEXT else f"task {by}"


def _change(row: Row, by: str) -> str:
    if by in row.tasks:
        return _task_change(row.tasks[by])
    figures = row.texts[by]
    told = "" if figures.ratio is None else f", {_percent(figures.ratio)} against native"
    return f"{shown(figures.perplexity)}{told}"


def _task_change(figures: TaskFigures) -> str:
    """``88.10 %, -1.20 points against native, lost/won 20/9, p = 0.041``."""
    if figures.points is None:
        return f"{figures.accuracy:.2%}"
    flips = "" if figures.lost is None else f", lost/won {figures.lost}/{figures.won}"
    p = figures.p if figures.p_holm is None else figures.p_holm
    told = "" if p is None else (", p < 0.001" if p < 0.001 else f", p = {p:.3f}")
    return f"{figures.accuracy:.2%}, {figures.points:+.2f} points{flips}{told}"


def _percent(ratio: float) -> str:
    return f"{100 * (ratio - 1):+.2f}%" if ratio < 100 else f"{ratio:,.0f} times"


def _listed(names: Sequence[str]) -> str:
    return ", ".join(names[:-1]) + " and " * (len(names) > 1) + names[-1]
