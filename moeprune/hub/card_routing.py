"""What a model card says of k₁ and k₂: what they do, who honours them, and what all others run."""

from __future__ import annotations

from moeprune.core.cost import Cost
from moeprune.core.policy import RoutingPolicy
from moeprune.core.sizes import count
from moeprune.hub.markdown import size, table

Changed = tuple[RoutingPolicy, RoutingPolicy]
"""k₁ and k₂ of this model, and of the source."""

PAPER = "Halving the Activated Experts of a MoE Without Training"


def routing_rows(policy: RoutingPolicy, native: RoutingPolicy) -> list[tuple[str, str]]:
    """Rows of the table of what changed.

    Args:
        policy: of this model.
        native: of the source.
    """
    return [
        ("Experts run per token (k₁)", f"{native.k1} → {policy.k1}"),
        ("Their weights are divided by the sum of the top (k₂)", f"{native.k2} → {policy.k2}"),
    ]


def token_rows(token: Cost | None) -> list[tuple[str, str]]:
    """Rows of what a token costs: of parameters, and of the weights that decoding it reads."""
    if token is None:
        return []
    mine, native = token.activated, token.native
    if mine.routed == native.routed:
        return [("Parameters a token activates", f"{count(mine.total)} (in as many experts)")]
    change = f"{token.relative['total'] - 1:+.1%}".replace("-", "−")
    return [
        ("Parameters a token activates", f"{count(native.total)} → {count(mine.total)} ({change})"),
        (
            "Weights that decoding one token reads",
            f"{size(native.bytes_per_token)} → {size(mine.bytes_per_token)}",
        ),
    ]


def experts_run(k1: int) -> str:
    """``4 experts run``."""
    return f"{_experts(k1)} run{'s' if k1 == 1 else ''}"


def routing_title(policy: RoutingPolicy, native: RoutingPolicy) -> tuple[str, str]:
    """What differs where all experts stay: for the title, and in a sentence.

    Args:
        policy: of this model.
        native: of the source.
    """
    if policy.k1 == native.k1:
        how = f"whose experts' weights are divided by the sum over the router's top {policy.k2}"
        return f"weights over its top {policy.k2}", how
    return f"{_experts(policy.k1)} per token", "with another number of experts run per token"


def routing_section(policy: RoutingPolicy, native: RoutingPolicy, *, per_layer: bool) -> str:
    """The section on routing.

    Args:
        policy: of this model.
        native: of the source.
        per_layer: nothing loads without the code, because layers have different widths.
    """
    others = (
        "does not load: layers have different numbers of experts"
        if per_layer
        else f"the routing of the source: {_experts(native.k1)} per token, correct"
        + (" and not faster" if policy.k1 < native.k1 else "")
    )
    top_k = (
        ""
        if per_layer
        else " The top-k that config.json states is the source's, so that a runtime that does not "
        "know the block `moeprune` routes as the source does."
    )
    instead = ", as in the source" if policy.k1 == native.k1 else f" in place of {native.k1}"
    rows = [
        (
            "transformers 5.17 to 5.24 with `trust_remote_code=True`",
            f"k₁ = {policy.k1}, k₂ = {policy.k2}: `modeling_moeprune.py` in this repository",
        ),
        (
            "vLLM with the package moeprune installed",
            f"k₁ = {policy.k1}, k₂ = {policy.k2}: its plugin reads `moeprune` in config.json",
        ),
        ("transformers without it, vLLM without the plugin, all others", others),
    ]
    return (
        f"## Routing\n\n{experts_run(policy.k1)} per token{instead}. Their weights "
        f"are the router's own, divided by the sum over its top {policy.k2} (k₂) in place of "
        f"{native.k2}; choice, selection bias, groups and scales are the router's. Nothing was "
        f"trained.{top_k}\n\n" + table(("Runtime", "What it runs"), rows)
    )


def _experts(number: int) -> str:
    return "1 expert" if number == 1 else f"{number} experts"
