"""Run an export and the masked source, one after the other, and compare their logits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.own_code import is_own_code
from moeprune.core.layout import MoeLayout
from moeprune.core.plan import PrunePlan
from moeprune.core.policy import RoutingPolicy
from moeprune.stages.numbers import check_numbers
from moeprune.stages.policies import changed

if TYPE_CHECKING:
    from moeprune.evaluate.logits import LogitDifference
    from moeprune.stages.quantised_reference import Reference

PROMPTS = (
    "The river rises in the mountains and reaches the sea after",
    "def area(width: float, height: float) -> float:\n    return",
    "Q: A train leaves at 9:40 and arrives at 11:05. How long does it take?\nA:",
    "Größe, naïve café, 你好, Привет — and then",
)


def compare_forward(
    source: CheckpointIndex,
    out: Path,
    *,
    layout: MoeLayout,
    plan: PrunePlan | None,
    policy: RoutingPolicy | None,
    dtype: str,
    device: str | None,
    trust_remote_code: bool,
    own_code: bool,
    rounding: bool,
    other: Reference | None = None,
) -> LogitDifference:
    """Logits of an export on a few prompts against the source's, masked and rerouted live.

    Args:
        source: the checkpoint that was pruned.
        out: the exported folder.
        layout: of the source.
        plan: which experts stay; None: all.
        policy: k₁ and k₂ of the export's routers; None: those of the source.
        dtype: to load both models in, one after the other.
        device: to run them on.
        trust_remote_code: run code that comes with the source.
        own_code: run the code in ``out``: it was compared with ours, byte for byte.
        rounding: also measure how far rounding alone moves these logits.
        other: the numbers that take the place of the source's; None: they are its own.

    Raises:
        VerificationError: the mask does not fit this family.
        UnsupportedModelError: the loaded numbers are not those that the source means.
    """
    from moeprune.evaluate.logits import compare_logits, prompt_logits, random_prompts
    from moeprune.evaluate.rounding import rounding_noise
    from moeprune.observe.layers import moe_layers
    from moeprune.observe.load import load_causal_lm, load_tokenizer
    from moeprune.observe.replaced import load_replaced

    # An export of ours may be what was pruned; code is run where it is ours, byte for byte.
    own_code = own_code or is_own_code(CheckpointIndex.open(out))
    of_source = trust_remote_code or is_own_code(source)

    def loaded(path: Path, *, trust: bool) -> Any:
        return load_causal_lm(path, dtype=dtype, device=device, trust_remote_code=trust)

    if other is None:
        full = loaded(source.path, trust=of_source)
        check_numbers(source, layout, full)
    else:
        full = load_replaced(
            source.path,
            files=source.files,
            replaced=other.replaced,
            without=other.without,
            dtype=dtype,
            device=device,
            trust_remote_code=of_source,
        )
    vocabulary = int(full.get_input_embeddings().num_embeddings)
    prompts: Sequence[Sequence[int]]
    folder = source.path
    if (folder / "tokenizer.json").is_file() or (folder / "tokenizer_config.json").is_file():
        tokenizer = load_tokenizer(folder, trust_remote_code=of_source)
        prompts = [ids for text in PROMPTS if (ids := tokenizer(text)["input_ids"])]
    else:
        prompts = random_prompts(vocabulary, count=len(PROMPTS), length=24, seed=0)
    layers = moe_layers(full, layout)
    with changed(full, layout, plan, policy):
        reference = prompt_logits(full, prompts)
        experts = [layer.experts for layer in layers]
        noise = rounding_noise(full, prompts, reference, experts=experts) if rounding else 0.0
    del full, layers, experts  # one model in memory at a time
    pruned = loaded(out, trust=trust_remote_code or own_code)
    return replace(compare_logits(reference, prompt_logits(pruned, prompts)), noise=noise)
