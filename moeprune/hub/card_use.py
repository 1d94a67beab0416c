"""What a model card says of loading the model, and of its limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeprune.core.plan import PrunePlan
from moeprune.hub.card_quantised import quantised_use
from moeprune.hub.card_routing import Changed
from moeprune.hub.markdown import escape, size


def use_section(
    plan: PrunePlan | None,
    form: str,
    changed: Changed | None,
    *,
    plain: bool = False,
    quantisation: Mapping[str, Any] | None = None,
) -> str:
    """The sections on loading and on limits.

    Args:
        plan: what was pruned; None: nothing.
        form: how layers of different counts were written.
        changed: k₁ and k₂ of this model and of the source, where they differ.
        plain: whether they are in config.json and the weights, and no code is needed for them.
        quantisation: how weights are stored, as moeprune.json has it; None: as in the source.
    """
    family = escape(plan.model_type) if plan else ""
    kind = f"A plain {family} checkpoint" if family else "A plain checkpoint"
    code = form == "per-layer" or (changed and not plain) or (quantisation or {}).get("code")
    trust = ", trust_remote_code=True" if code else ""
    python = (
        "```python\n"
        "from transformers import AutoModelForCausalLM, AutoTokenizer\n\n"
        f'model = AutoModelForCausalLM.from_pretrained("MODEL", dtype="auto"{trust})\n'
        'tokenizer = AutoTokenizer.from_pretrained("MODEL")\n'
        "```"
    )
    if form == "per-layer":
        how = (
            "Layers keep different numbers of experts. The file `modeling_moeprune.py` builds the "
            f"{family} model of transformers (5.17 to 5.24) with the counts that config.json "
            "states; without `trust_remote_code=True` loading fails, and so it does in runtimes "
            f"that read one count for all layers.\n\n{python}"
        )
    elif changed and not plain:
        how = (
            f"Put this repository's id or a local folder in place of `MODEL`.\n\n{python}\n\nThe "
            "same without `trust_remote_code=True` loads the same weights with the routing of the "
            "source."
        )
    elif code:
        how = f"Put this repository's id or a local folder in place of `MODEL`.\n\n{python}"
    else:
        how = (
            f"{kind}; put this repository's id or a local folder in place of `MODEL`. If the "
            "source needs `trust_remote_code=True`, so does this model.\n\n"
            f"{python}\n\n```bash\nvllm serve MODEL\n```"
        )
    how += "".join(f"\n\n{line}" for line in quantised_use(quantisation))
    if plan and form == "padded":
        wide = max(map(len, plan.keep))
        padding = number(plan.size.get("bytes_padding"))
        how += (
            f"\n\nLayers keep different numbers of experts; each is filled up to {wide} with "
            "experts of zeros that the router cannot choose (their bias is −1e9)"
            + (f": {size(padding)} of the weights are such padding." if padding else ".")
        )
    limits = []
    if plan and not changed:
        limits.append(
            f"Each token still runs {plan.top_k} experts per layer: memory falls, compute per "
            "token does not."
        )
    if plan:
        limits.append(
            "Pruning costs quality, and not the same in every domain, language or task. What the "
            "calibration text did not show was not protected."
        )
    if changed:
        limits.append(
            "Other k₁ and k₂ than the source's change quality, and how much is not known from "
            "perplexity alone: evaluate on your own task, beside the source and beside k₂ = k₁."
        )
    limits.append("Limits, biases and terms of the source apply.")
    return f"## Loading\n\n{how}\n\n## Limits\n\n" + "\n".join(f"- {line}" for line in limits)


def number(value: Any) -> float | None:
    """A number of a plan, or None."""
    # A plan may have been edited by a person: what is no number is left out of the card.
    return float(value) if type(value) in (int, float) else None
