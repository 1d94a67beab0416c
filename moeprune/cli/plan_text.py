"""How a plan reads on a terminal, and how domain weights are spelled."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from moeprune.cli.constraint_text import constraint_lines
from moeprune.cli.mixed_text import scheme_lines
from moeprune.cli.proof_text import proof_lines, worst_text
from moeprune.cli.text import size, table
from moeprune.core.methods import AUTO
from moeprune.core.proven import weightless
from moeprune.errors import PlanError, UsageError

if TYPE_CHECKING:
    from moeprune.core.plan import PrunePlan

_STABLE = 0.8  # docs/concepts.md: below, too much of a plan is chance


def parse_weights(texts: Sequence[str]) -> dict[str, float] | str | None:
    """``("math=2",)`` to ``{"math": 2.0}``; ``("tokens",)`` to ``"tokens"``.

    Raises:
        UsageError: neither, a domain twice, or ``tokens`` beside single weights.
    """
    if not texts:
        return None
    if list(texts) == ["tokens"]:
        return "tokens"
    weights: dict[str, float] = {}
    for text in texts:
        name, equals, value = text.rpartition("=")
        try:
            weight = float(value)
        except ValueError:
            weight = -1.0
        if not equals or not name or name in weights or not 0 <= weight < float("inf"):
            raise UsageError(
                f"--domain-weight {text!r} is not NAME=W with W >= 0, each name once, or the one "
                "word 'tokens'."
            )
        weights[name] = weight
    return weights


def plan_text(plan: PrunePlan, last: str) -> str:
    """What ``moeprune plan`` and ``moeprune plan show`` print; ``last`` is the last line."""
    count = plan.uniform_count
    kept = sum(len(ids) for ids in plan.keep)
    each = f"{count} in each layer" if count else "a different number in each layer"
    by = "auto chose " if plan.options.get("method") == AUTO else ""
    lines = [
        f"{by}{plan.method} ({plan.criterion}, {plan.allocation}): keeps {kept} of "
        f"{sum(plan.num_experts)} experts, {each}"
    ]
    lines += [f"why: {reason}" for reason in plan.reasons]
    lines += scheme_lines(plan)
    lines += constraint_lines(plan)
    if plan.worst_domain is not None and plan.worst_domain_loss is not None:
        lines.append(worst_text(plan, plan.worst_domain_loss))
        lines += proof_lines(plan)
        lines += _signal(plan)
        lines += _predicted(plan)
        lines.append(table(_losses(plan)))
    if "entropy_ratio" in plan.routing:
        lines.append(
            f"routing entropy {plan.routing['entropy_ratio']:.1%} of its maximum: "
            f"{plan.routing['regime']}"
        )
    lines += _stability(plan)
    lines += _search(plan)
    lines += _unseen(plan)
    if "bytes_before" in plan.size:
        before, after = plan.size["bytes_before"], plan.size["bytes_after"]
        lines.append(
            f"size {size(before)} -> {size(after)} ({1 - after / before:.1%} less); a token runs "
            f"{plan.top_k} expert{'s' * (plan.top_k > 1)}, as before"
        )
    lines += [f"warning: {warning}" for warning in plan.warnings]
    lines.append(last)
    return "\n".join(lines)


def shown_text(plan: PrunePlan, path: Path) -> str:
    """What ``moeprune plan show`` prints of a file that a person may have edited.

    Raises:
        PlanError: an entry is not of the form that ``plan`` writes.
    """
    last = f"{plan.model_name}, fingerprint {plan.model_fingerprint[:12]}"
    try:
        return plan_text(plan.without_stale(), last)
    except (AttributeError, ArithmeticError, LookupError, TypeError, ValueError) as problem:
        raise PlanError(
            f"{path}: an entry beside 'layers' is not of the form that 'moeprune plan' writes "
            f"({problem}). Undo the edit, or take the entry out."
        ) from problem


def _stability(plan: PrunePlan) -> list[str]:
    if plan.criterion == "random":
        return ["stability: does not apply, a random choice reads no text"]
    if "jaccard" not in plan.stability:
        return []
    jaccard = plan.stability["jaccard"]
    if jaccard is None:
        return ["stability: not known, a domain has too few documents to be halved"]
    low = "" if jaccard >= _STABLE else ": calibrate on more and longer text"
    return [f"stability: two halves of the text agree on {jaccard:.0%} of what leaves{low}"]


def _search(plan: PrunePlan) -> list[str]:
    if "search" not in plan.details:
        return []
    search = plan.details["search"]
    fitness = search["fitness"]
    lines = [
        f"search: fitness {fitness['best']:.4f}, of the uniform plan {fitness['uniform']:.4f}; "
        f"{search['generations']} generations, {search['candidates']:,} plans"
    ]
    fell = [
        f"{name} {esap['uniform']:.4f} to {esap['best']:.4f}"
        for name, esap in search.get("domains", {}).items()
        if esap["best"] < esap["uniform"]
    ]
    if fell:
        lines.append(f"  below the uniform plan: {', '.join(fell)} (see --objective worst-domain)")
    return lines


def _losses(plan: PrunePlan) -> list[list[str]]:
    """The table of what each domain loses, by mass, by another signal and as predicted."""
    idle = weightless(plan)
    signal, change = plan.details.get("signal"), plan.predicted
    rows = [["  domain", "router mass removed"]]
    rows[0] += [f"{signal['name']} removed"] if signal else []
    rows[0] += ["predicted nats"] if change else []
    for name, loss in sorted(plan.domain_loss.items(), key=lambda item: (-item[1], item[0])):
        row = [f"  {name} (weighs 0)" if name in idle else f"  {name}", f"{loss:.2%}"]
        row += [f"{signal['domain_loss'][name]:.2%}"] if signal else []
        rows.append(row + ([nats(change.get(name))] if change else []))
    return rows


def _predicted(plan: PrunePlan) -> list[str]:
    if plan.worst_predicted is None:
        return []
    most = nats(plan.predicted[plan.worst_predicted])
    of = plan.details.get("predicted", {})
    which = " of answers" if of.get("loss") == "completion" else ""
    return [
        f"predicted change of the loss{which}: most in {plan.worst_predicted}, {most} nats a token"
    ]


def nats(change: float | None) -> str:
    """A predicted change of the loss, per target token."""
    return "not known" if change is None else f"{change:+.4g}"


def _signal(plan: PrunePlan) -> list[str]:
    signal = plan.details.get("signal")
    if not signal:
        return []
    worst, loss = signal["worst_domain"], signal["worst_domain_loss"]
    return [f"by its signal {signal['name']}, {worst} loses most: {loss:.2%}"]


def _unseen(plan: PrunePlan) -> list[str]:
    if "unseen" not in plan.details:
        return []
    idle = plan.details["unseen"]
    total = sum(plan.num_experts)
    alone = sorted(idle["domains"].items(), key=lambda item: (-item[1], item[0]))
    by_domain = ", ".join(f"{name} {count}" for name, count in alone)
    return [f"experts that saw no token: {idle['experts']} of {total}; by domain: {by_domain}"]
