"""How the difference of two plans reads on a terminal."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from moeprune.cli.plan_text import nats
from moeprune.cli.text import table
from moeprune.core.constraints import id_ranges
from moeprune.core.plan_diff import diff_name

if TYPE_CHECKING:
    from moeprune.core.plan import PrunePlan
    from moeprune.core.plan_diff import PlanDiff


def diff_text(diff: PlanDiff, plans: tuple[PrunePlan, PrunePlan], paths: tuple[Path, Path]) -> str:
    """What ``moeprune plan diff`` prints."""
    lines = []
    for letter, plan, path in zip("AB", plans, paths, strict=True):
        kept, of = sum(map(len, plan.keep)), sum(plan.num_experts)
        edited = "; edited by hand, so its losses are not known" if plan.edited else ""
        lines.append(
            f"{letter}: {path}: {plan.method} ({plan.criterion}, {plan.allocation}) keeps {kept} "
            f"of {of} experts{edited}"
        )
    lines.append(f"they agree on {diff.jaccard:.0%} of what leaves")
    rows = [["  layer", "A keeps", "B keeps", "agree", "only A keeps", "only B keeps"]]
    if diff.schemes:
        rows[0] += ["A stores", "B stores"]
    rows += [
        [
            f"  {diff_name(row)}",
            str(row.kept[0]),
            str(row.kept[1]),
            f"{row.jaccard:.0%}",
            id_ranges(row.only_a) or "-",
            id_ranges(row.only_b) or "-",
            *((scheme or "-" for scheme in row.schemes) if diff.schemes else ()),
        ]
        for row in diff.rows
        if row.only_a or row.only_b or len(set(row.schemes)) > 1
    ]
    same = len(diff.rows) - len(rows) + 1
    if len(rows) > 1:
        lines.append(table(rows))
    if same:
        lines.append(f"{'all' if same == len(diff.rows) else same} layers are the same in both")
    if diff.losses:
        losses = [["  domain", "A loses", "B loses"]]
        if diff.predicted:
            losses[0] += ["A predicts", "B predicts"]
        # The domain that loses most in either plan first.
        worst = sorted(
            diff.losses.items(), key=lambda item: (-max(loss or 0 for loss in item[1]), item[0])
        )
        for name, (a, b) in worst:
            change = diff.predicted.get(name, (None, None))
            more = [nats(each) for each in change] if diff.predicted else []
            losses.append([f"  {name}", _share(a), _share(b), *more])
        lines.append(table(losses))
    return "\n".join(lines)


def _share(loss: float | None) -> str:
    return "not known" if loss is None else f"{loss:.2%}"
