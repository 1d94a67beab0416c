"""What a row of a plan must leave so that the model can run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprune.core.limits import MIN_PER_GROUP
from moeprune.errors import PlanError

if TYPE_CHECKING:
    from moeprune.core.plan import PrunePlan


def check_row(plan: PrunePlan, where: str, count: int, ids: tuple[int, ...]) -> None:
    """Check one row of a plan.

    Args:
        plan: states experts per token and router groups.
        where: the row in words, for messages.
        count: its routed experts.
        ids: those that stay.

    Raises:
        PlanError: what would be left cannot run; the message names the row and the way out.
    """
    if count < 1:
        raise PlanError(f"{where} has {count} experts; list MoE layers only.")
    for index, expert in enumerate(ids):
        if not 0 <= expert < count:
            raise PlanError(
                f"{where} keeps expert {expert}, but has experts 0 to {count - 1}; "
                "take it out of 'keep'."
            )
        if index and expert <= ids[index - 1]:
            problem = "twice" if expert in ids[:index] else f"after expert {ids[index - 1]}"
            raise PlanError(
                f"{where} lists expert {expert} {problem}; list ascending ids, each once."
            )
    if len(ids) == count:
        return  # nothing leaves: the layer is what the model already runs
    floor = max(plan.top_k, MIN_PER_GROUP)
    if len(ids) < floor:
        raise PlanError(
            f"{where} keeps {len(ids)} experts, but each token runs {plan.top_k}; "
            f"keep at least {floor}."
        )
    if plan.num_groups > 1:
        _check_groups(plan, where, count, ids)


def _check_groups(plan: PrunePlan, where: str, count: int, ids: tuple[int, ...]) -> None:
    groups = plan.num_groups
    if count % groups:
        raise PlanError(
            f"{where} has {count} experts, which do not divide into {groups} groups; "
            "num_groups must be the model's."
        )
    kept_G = [0] * groups
    for expert in ids:
        kept_G[expert * groups // count] += 1
    if len(set(kept_G)) != 1:
        raise PlanError(
            f"{where} keeps {kept_G} experts of its {groups} router groups; "
            "keep the same number of each."
        )
    least = max(MIN_PER_GROUP, -(-plan.top_k // plan.top_groups))
    if kept_G[0] < least:
        raise PlanError(
            f"{where} keeps {kept_G[0]} experts of each router group; each token needs "
            f"{least} of a group, so keep at least {least * groups} in the layer."
        )
