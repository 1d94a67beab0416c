"""ERNIE 4.5 VL's vision experts: the export computes what the source does without the same ids."""

from __future__ import annotations

from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from family_data import family_data, load, write_checkpoint
from safetensors.torch import load_file, save_file

import moeprune
from moeprune.core.plan import PrunePlan
from moeprune.errors import CheckpointError
from moeprune.routing.mask import masked_experts
from moeprune.stages.eval_model import open_asked
from moeprune.stages.identify import open_model
from moeprune.stages.numbers import check_numbers

KEEP = ((0, 2, 3, 5, 8, 11), (1, 2, 4, 6, 9, 10))
IDS = torch.arange(3, 27)[None]


def logits(model: torch.nn.Module, vision: torch.Tensor) -> torch.Tensor:
    """Logits with some positions taken for vision, as the blocks of the language model see it."""
    hooks = [
        module.register_forward_pre_hook(lambda _m, inputs: (inputs[0], vision))
        for name, module in model.named_modules()
        if name.endswith("mlp") and hasattr(module, "vision_moe")
    ]
    assert len(hooks) == 2
    with torch.no_grad():
        found: torch.Tensor = model(input_ids=IDS, use_cache=False).logits
    for hook in hooks:
        hook.remove()
    return found


def test_both_sets_lose_the_same_ids(tmp_path: Path) -> None:
    data = family_data("ernie4_5_vl_moe")
    source = write_checkpoint(data, tmp_path / "source")
    facts = open_model(source).facts
    plan = PrunePlan(
        model_name=facts.name,
        model_fingerprint=facts.fingerprint,
        model_type=facts.model_type,
        top_k=facts.top_k,
        layer_ids=facts.layer_ids,
        num_experts=facts.num_experts,
        keep=KEEP,
    )
    out = moeprune.export(source, plan=plan, output=tmp_path / "out")
    assert moeprune.verify(out, source=source, forward=True).ok
    full, small = load(data, source)[0], load(data, out)[0]
    vision = (torch.arange(IDS.shape[1]) % 3 == 0)[None]
    plain = logits(full, vision)
    with ExitStack() as stack:
        for part in ("text_moe", "vision_moe"):
            routers = [
                full.get_submodule(f"model.language_model.layers.{layer}.mlp.{part}.gate")
                for layer in facts.layer_ids
            ]
            stack.enter_context(
                masked_experts(
                    full, routers=routers, num_experts=facts.num_experts, removed=plan.removed
                )
            )
        masked = logits(full, vision)
    torch.testing.assert_close(logits(small, vision), masked, rtol=1e-5, atol=2e-5)
    assert (plain - masked).abs().max() > 1e-2
    assert (logits(small, ~vision) - masked).abs().max() > 1e-2


@pytest.mark.parametrize("damaged", ["", "0", "12"])
def test_quantised_text_experts_have_the_size_that_they_are_stored_with(
    damaged: str, tmp_path: Path
) -> None:
    """Those for images, numbered on over them, lie in another module and are not compared."""
    source = write_checkpoint(family_data("ernie4_5_vl_moe"), tmp_path / "source")
    out = moeprune.export(source, output=tmp_path / "out", quantize="int8")
    loading = {"dtype": "float32", "device": "cpu", "trust_remote_code": False}
    live = open_asked(out).load(**loading)  # which compares them, too
    file = next(out.glob("*.safetensors"))
    tensors = load_file(file)
    for name, tensor in tensors.items():
        if f".1.mlp.experts.{damaged}." in name and name.endswith("scale"):
            tensor *= 2  # in the files, as if a loader had left a factor out
    save_file(tensors, file, metadata={"format": "pt"})
    asked = open_asked(out)
    if damaged != "0":
        check_numbers(asked.index, asked.routed, live)
        return
    with pytest.raises(CheckpointError, match="it does not read this format rightly"):
        check_numbers(asked.index, asked.routed, live)
