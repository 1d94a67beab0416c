"""The model card of a pruned checkpoint: what was removed, how, and what it costs whom.

Markdown with the YAML front matter that the Hub reads. The text follows from its arguments alone:
same plan, same bytes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moeprune.core.cost import Cost
from moeprune.core.facts import ModelFacts
from moeprune.core.plan import PrunePlan
from moeprune.core.policy import RoutingPolicy
from moeprune.core.rows import row_name, rows_of
from moeprune.hub.card_folding import routed
from moeprune.hub.card_front import front_matter
from moeprune.hub.card_losses import losses
from moeprune.hub.card_quantised import quantised_section, quantised_title
from moeprune.hub.card_routing import PAPER, Changed, routing_rows, routing_title, token_rows
from moeprune.hub.card_use import number, use_section
from moeprune.hub.markdown import escape, ranges, size, table
from moeprune.hub.resolve import is_hub_id

MESA_PAPER = (
    "When Load-Balancing Goes Too Far: Expert Pruning in Over-Dispersed Mixture-of-Experts Models"
)
REAP_PAPER = "REAP the Experts: Why Pruning Prevails for One-Shot MoE Compression"
SCORE_PAPER = (
    "How to Score Experts for One-Shot MoE Expert Pruning: A Unified Formulation and Selection "
    "Principle"
)
# criterion -> the paper that it is from, or from whose baselines
CRITERION_PAPERS = {
    **dict.fromkeys(("reap", "reap-sum", "ean", "ean-sum"), f"*{REAP_PAPER}* (arXiv 2510.13999)"),
    **dict.fromkeys(("man", "msan"), f"*{SCORE_PAPER}* (arXiv 2606.15716)"),
}


def model_card(
    plan: PrunePlan | None,
    *,
    source: str,
    source_readme: str | None = None,
    form: str = "uniform",
    policy: RoutingPolicy | None = None,
    gains: Sequence[float] | None = None,
    facts: ModelFacts | None = None,
    native: RoutingPolicy | None = None,
    token: Cost | None = None,
    quantisation: Mapping[str, Any] | None = None,
    notes: Sequence[str] = (),
) -> str:
    """README.md of an exported model.

    Args:
        plan: what was pruned; None: nothing.
        source: Hub id of the model that was pruned, or the name of its folder (see
            ``moeprune.hub.resolve.source_name``: a card is public, a path is not).
        source_readme: the README.md of the source; its licence, language and task are taken over.
        form: how layers of different counts were written: ``"per-layer"`` or ``"padded"``.
        policy: k₁ and k₂, where they are not the source's.
        gains: (L,) factors of experts that stand for k₂ in a plain checkpoint; None: no such.
        facts: of the source.
        native: k₁ and k₂ of the source; given with ``policy``.
        token: what a token activates and reads, here and in the source.
        quantisation: how weights are stored, as moeprune.json has it; None: as in the source.
        notes: one line each, of the export.
    """
    changed = None if policy is None or native is None else (policy, native)
    pruned = [] if plan is None else [_how(plan, notes), losses(plan)]
    sections = [
        front_matter(
            source, source_readme, pruned=plan is not None, quantised=quantisation is not None
        ),
        _what(
            plan,
            source,
            facts,
            changed,
            token,
            scaled=any(g != 1.0 for g in gains or ()),
            quantisation=quantisation,
        ),
        *pruned,
        quantised_section(quantisation, () if plan else notes),
        routed(changed, form, gains, () if plan or quantisation else notes),
        use_section(plan, form, changed, plain=gains is not None, quantisation=quantisation),
        "" if plan is None else _kept(plan),
        _citation(plan, policy),
    ]
    text = "\n\n".join(section for section in sections if section) + "\n"
    # A lone surrogate (an undecodable file name) cannot be written as UTF-8.
    return text.encode("utf-8", "replace").decode()


def read_readme(folder: Path) -> str | None:
    """README.md of the source, for ``model_card``; None if there is none that can be read."""
    try:
        return (folder / "README.md").read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError):
        return None


def _what(
    plan: PrunePlan | None,
    source: str,
    facts: ModelFacts | None,
    changed: Changed | None,
    token: Cost | None,
    *,
    scaled: bool,
    quantisation: Mapping[str, Any] | None,
) -> str:
    but = ", but for what experts' last linear maps are multiplied by (see Routing)"
    but = but if scaled else ""
    if quantisation is not None:
        but += ", but for the weights that are quantised (see Quantisation)"
    same = f"byte for byte {'those' if plan else 'that'} of the source{but}"
    name = escape(source)
    shown = f"[{name}](https://huggingface.co/{source})" if is_hub_id(source) else name
    if plan is None:
        assert facts is not None and (changed or quantisation), "else nothing was changed"
        rows = [
            ("Family", escape(facts.model_type)),
            ("MoE layers", f"{len(set(facts.layer_ids))}"),
            ("Routed experts per layer", f"{_span(facts.num_experts)} (unchanged)"),
            *(routing_rows(*changed) if changed else ()),
            *token_rows(token),
        ]
        title, how = (
            routing_title(*changed)
            if changed
            else (quantised_title(quantisation or {}), "with the weights of its experts quantised")
        )
        head = f"# {name}, {title}\n\n{shown} {how}. Every weight is {same}; nothing was trained."
        return head + "\n\n" + table(("", "source → this model"), rows)
    before, after = sum(plan.num_experts), sum(plan.num_experts) - plan.num_removed
    rows = [
        ("Family", escape(plan.model_type)),
        ("MoE layers", f"{len(set(plan.layer_ids))}"),
        ("Routed experts per layer", f"{_span(plan.num_experts)} → {_span(map(len, plan.keep))}"),
        ("Routed experts in all", f"{before} → {after} ({plan.ratio:.1%} removed)"),
        *(
            routing_rows(*changed)
            if changed
            else [("Experts run per token", f"{plan.top_k} (unchanged)")]
        ),
        *token_rows(token),
    ]
    old, new = number(plan.size.get("bytes_before")), number(plan.size.get("bytes_after"))
    if old and new is not None:
        rows.append(("Weights", f"{size(old)} → {size(new)} ({1 - new / old:.1%} smaller)"))
    return (
        f"# {name}, {100 * plan.ratio:.3g}% of its experts pruned\n\n"
        f"{shown} with whole routed experts removed by moeprune. The experts that stay, their "
        f"router rows and everything else are {same}; nothing was trained.\n\n"
        + table(("", "source → this model"), rows)
    )


def _how(plan: PrunePlan, notes: Sequence[str]) -> str:
    rows = [
        ("Method", escape(plan.method)),
        ("Criterion", escape(plan.criterion)),
        ("Allocation", escape(plan.allocation)),
    ]
    rows += [(f"Option {escape(key)}", _value(plan.options[key])) for key in sorted(plan.options)]
    if plan.domain_loss:
        rows.append(("Calibration domains", ", ".join(map(escape, sorted(plan.domain_loss)))))
    if plan.stats_sha256:
        rows.append(("Calibration stats (sha256)", escape(plan.stats_sha256)))
    ratio = number(plan.routing.get("entropy_ratio"))
    if ratio is not None:
        regime = escape(plan.routing.get("regime", "unknown"))
        rows.append(("Router entropy / log2 E", f"{ratio:.3f} ({regime})"))
    jaccard = number(plan.stability.get("jaccard"))
    if jaccard is not None:
        rows.append(("Stability (Jaccard of two halves of the text)", f"{jaccard:.3f}"))
    notes = "".join(f"\n\nNote: {escape(warning)}" for warning in (*plan.warnings, *notes))
    return "## How it was pruned\n\n" + table(("", "value"), rows) + notes


def _kept(plan: PrunePlan) -> str:
    rows = [
        (row_name(*row).removeprefix("layer "), f"{len(ids)} of {count}", ranges(ids))
        for row, count, ids in zip(
            rows_of(plan.layer_ids, plan.sets), plan.num_experts, plan.keep, strict=True
        )
    ]
    return (
        "<details>\n<summary>Kept experts of every layer, by their numbers in the source</summary>"
        "\n\n" + table(("Layer", "Kept", "Experts"), rows) + "\n\n</details>"
    )


def _citation(plan: PrunePlan | None, policy: RoutingPolicy | None) -> str:
    lines = [f"- *{MESA_PAPER}*: router mass, the worst domain, routing regimes."] if plan else []
    if policy is not None:
        lines.append(f"- *{PAPER}*: k₁ and k₂.")
    if plan and plan.criterion in CRITERION_PAPERS:
        lines.append(f"- {CRITERION_PAPERS[plan.criterion]}: the criterion.")
    if plan and plan.method == "evoesap":
        lines.append("- EvoESAP (arXiv 2603.06003): the search for how many each layer keeps.")
    return "## Papers\n\n" + "\n".join(lines) if lines else ""


def _span(counts: Any) -> str:
    """One number, or least to most."""
    found = sorted(counts)
    return f"{found[0]}" if found[0] == found[-1] else f"{found[0]} to {found[-1]}"


def _value(value: Any) -> str:
    if isinstance(value, Mapping):
        return ", ".join(f"{escape(key)} {_value(value[key])}" for key in sorted(value)) or "none"
    if isinstance(value, str):
        return escape(value)
    return escape(json.dumps(value, ensure_ascii=False, sort_keys=True))
