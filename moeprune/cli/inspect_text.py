"""How an inspection reads on a terminal."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

from moeprune.cli.cost_text import cost_text, token_text
from moeprune.cli.text import size, table

if TYPE_CHECKING:
    from moeprune.stages.inspect import Inspection

# How the family is known -> what that means for the user.
_FAMILY = {
    "listed": "listed",
    "inferred": "inferred from transformers' own classes; it is not in the list",
    "by the rule set": "by the rule set, from names and shapes; the model runs by code of its own, "
    "so calibrate needs --trust-remote-code and --gating",
}


def inspect_text(model: Inspection) -> str:
    """What ``moeprune inspect`` prints."""
    lines = [
        f"{model.name}: {model.model_type}, {len(model.layer_ids)} MoE layers x "
        f"{model.num_experts} experts, top-{model.top_k}"
        + ("" if model.gating == "unknown" else f" of {model.gating} scores"),
        f"family: {_FAMILY[model.family]}",
        f"MoE layers {ranges(model.layer_ids)}"
        + (f"; dense {ranges(model.dense_layers)}" if model.dense_layers else "; no dense layer"),
    ]
    if model.policy:
        lines.append(
            "exported with --k1 {k1} --k2 {k2}, which it runs with trust_remote_code=True or "
            "vLLM's plugin".format_map(model.policy)
        )
        slower = ", and no faster" if model.policy["k1"] < model.top_k else ""
        lines.append(f"  without them it routes as its source does{slower}")
    if model.folded_gain:
        lines.append(_folded(model.folded_gain))
    if model.num_groups > 1:
        lines.append(
            f"{model.num_groups} router groups of {model.num_experts // model.num_groups}, a token "
            f"chooses from {model.top_groups}"
        )
    if model.expert_sets:
        lines.append(
            f"every layer has further experts ({', '.join(model.expert_sets)}), of which it keeps "
            "as many, chosen on their own"
        )
    if model.idle_experts:
        lines.append(
            f"idle experts, which a token may choose instead and which stay: {model.idle_experts}"
        )
    if model.shared_experts:
        lines.append("shared experts: never touched")
    if model.following_layers:
        lines.append(
            f"{model.following_layers} next-token-prediction layers lose the same experts as layer "
            f"{model.layer_ids[-1]}"
        )
    share = model.experts_bytes / model.total_bytes
    stored = ", ".join(f"{dtype} {size(count)}" for dtype, count in model.dtypes.items())
    one = sorted(set(model.expert_bytes))
    lines += [
        f"{model.parameters:,} parameters, {size(model.total_bytes)} ({stored})",
        f"routed experts: {model.expert_parameters:,} parameters, {size(model.experts_bytes)} "
        f"({share:.1%}); one expert is "
        + (size(one[0]) if len(one) == 1 else f"{size(one[0])} to {size(one[-1])}"),
    ]
    lines += cost_text(model.token) or [token_text(model.token.native)]
    if model.quant_method:
        lines.append(f"quantised: {model.quant_method}")
    if model.not_runnable:
        lines.append(f"calibrate cannot run it: {model.not_runnable}")
    lines.append(f"config.json states the count as {', '.join(model.count_keys)}")
    if model.policy:
        return "\n".join([*lines, "calibrate, plan and export want the model it was made from"])
    if not model.choices:
        lines.append(
            f"cannot be pruned: a layer must keep at least {model.min_keep}"
            + (f", a multiple of {model.unit}" if model.unit > 1 else "")
        )
        return "\n".join(lines)
    lines.append(
        f"a pruned layer keeps {model.min_keep} to {model.num_experts - model.unit} experts"
        + (f", a multiple of {model.unit}" if model.unit > 1 else "")
    )
    rows = [["  --ratio", "experts", "size"]]
    rows += [
        [f"  {choice.ratio:g}", str(choice.keep), size(choice.bytes_after)]
        for choice in model.choices
    ]
    return "\n".join([*lines, table(rows)])


def _folded(gain: Mapping[str, Any]) -> str:
    """One line on a folded export."""
    least, most = min(gain["gains"]), max(gain["gains"])
    done = f"what experts give is multiplied by {least:.3f} to {most:.3f}, a constant a layer"
    return (
        f"exported with --k1 {gain['k1']} --k2 {gain['k2']} --fold-gain: config.json states k1, "
        + ("no weight was changed" if least == most == 1.0 else done)
    )


def ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers with runs shortened: ``0-2, 5``."""
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return ", ".join(str(a) if a == b else f"{a}-{b}" for a, b in runs)
