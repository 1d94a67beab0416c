"""The section of a model card about what each domain lost."""

from __future__ import annotations

from moeprune.core.plan import PrunePlan
from moeprune.core.proven import bound_text, bounded_plans, weightless
from moeprune.hub.markdown import escape, table


def losses(plan: PrunePlan) -> str:
    """The section of a card: of a plan edited by hand, that it is not known."""
    title = "## What each domain lost\n\n"
    if not plan.domain_loss:
        return title + "Not known: the plan was written or edited by hand."
    predicted = (
        ("Predicted change of the loss",) if {*plan.domain_loss} <= {*plan.predicted} else ()
    )
    rows: list[tuple[str, ...]] = []
    for domain, loss in sorted(plan.domain_loss.items(), key=lambda item: (-item[1], item[0])):
        worst = domain == plan.worst_domain
        name = escape(domain)
        name = f"{name} (weighs 0)" if domain in weightless(plan) else name
        change = [f"{plan.predicted[domain]:+.4g}"] if predicted else []
        rows.append((f"**{name}** (worst)" if worst else name, f"{loss:.2%}", *change))
    bound = (
        f" No {bounded_plans(plan)} can lose less than {bound_text(plan.lower_bound)} in its worst "
        "domain."
        if plan.lower_bound is not None
        else ""
    )
    said = (
        " The change of the loss, in nats per target token, was predicted from its gradients in "
        "calibration, before anything was removed; it ranks plans, and is no measurement."
        if predicted
        else ""
    )
    return (
        title + "Share of a domain's router mass (the sum of router probabilities over its "
        "calibration tokens) that the removed experts held. It says where the model was cut, not "
        f"what it still can do: evaluate on your own task.{bound}{said}\n\n"
        + table(("Domain", "Router mass removed", *predicted), rows)
    )
