"""How the plans of several ratios read on a terminal: a line each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moeprune.cli.constraint_text import constraint_lines
from moeprune.cli.plan_text import nats
from moeprune.cli.text import size, table
from moeprune.core.methods import AUTO
from moeprune.core.proven import bound_text

if TYPE_CHECKING:
    from moeprune.core.plan import PrunePlan


def plans_text(plans: Sequence[PrunePlan], paths: Sequence[Path]) -> str:
    """What ``moeprune plan`` prints of several ratios."""
    # auto may choose another method for another ratio.
    made = dict.fromkeys(f"{p.method} ({p.criterion}, {p.allocation})" for p in plans)
    by = "auto chose " if plans[0].options.get("method") == AUTO else ""
    lines = [f"{by}{', '.join(made)}, {len(plans)} plans", *constraint_lines(plans[0])]
    rows = [
        [
            "ratio",
            "method" if len(made) > 1 else "",
            "keeps",
            "worst domain",
            "loses",
            "predicted nats",
            "proven bound",
            "stability",
            "size",
        ]
    ]
    for plan in plans:
        bound, agree = plan.lower_bound, plan.stability.get("jaccard")
        worst = plan.worst_predicted
        rows.append(
            [
                str(plan.options["ratio"]),
                plan.method if len(made) > 1 else "",
                f"{sum(map(len, plan.keep))} of {sum(plan.num_experts)}",
                str(plan.worst_domain),
                f"{plan.worst_domain_loss:.2%}",
                "" if worst is None else f"{nats(plan.predicted[worst])} ({worst})",
                "" if bound is None else bound_text(bound),
                "" if agree is None else f"{agree:.0%}",
                size(plan.size["bytes_after"]),
            ]
        )
    used = [column for column in zip(*rows, strict=True) if any(column[1:])]
    lines.append(table(list(zip(*used, strict=True))))
    # The last reason is the verdict; the numbers before it are in the plans.
    verdicts = dict.fromkeys(plan.reasons[-1] for plan in plans if plan.reasons)
    for said in verdicts:
        ratios = (str(p.options["ratio"]) for p in plans if p.reasons and p.reasons[-1] == said)
        lines.append(f"why at {', '.join(ratios)}: {said}")
    warnings = dict.fromkeys(warning for plan in plans for warning in plan.warnings)
    lines += [f"warning: {warning}" for warning in warnings]
    lines += [f"written to {path}" for path in paths]
    return "\n".join(lines)
