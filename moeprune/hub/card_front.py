"""What the Hub reads at the top of a model card."""

from __future__ import annotations

import json

from moeprune.hub.markdown import copied_front_matter
from moeprune.hub.resolve import is_hub_id


def front_matter(source: str, source_readme: str | None, *, pruned: bool, quantised: bool) -> str:
    """What the Hub reads at the top of the card.

    Args:
        source: name of the model that it was made from.
        source_readme: its card, or None.
        pruned: whether experts left.
        quantised: whether weights are quantised.
    """
    lines = copied_front_matter(source_readme)
    if is_hub_id(source):
        # The Hub has no word for pruning; of adapter, merge, quantized and finetune this is the
        # one it would infer.
        relation = "quantized" if quantised else "finetune"
        lines += [f"base_model: {json.dumps(source)}", f"base_model_relation: {relation}"]
    lines += ["library_name: transformers", "tags:"]
    tags = ("moeprune", "mixture-of-experts", *(("expert-pruning",) if pruned else ()))
    lines += [f"- {tag}" for tag in tags]
    return "\n".join(["---", *lines, "---"])
