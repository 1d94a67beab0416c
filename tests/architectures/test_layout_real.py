"""The layout of real checkpoints against an oracle that knows no rule: save the model twice.

The same tiny model is saved by transformers with E experts and with a few fewer. A name that is in
one only is an expert's; a shape that differs, differs along the expert axis.
"""

from pathlib import Path

import pytest
from conftest import Tiny
from tiny import FAMILIES, tiny_checkpoint

from moeprune.architectures import layout_of
from moeprune.checkpoint.index import CheckpointIndex

COUNT = {"mixtral": ("num_local_experts", 10), "deepseek_v3": ("n_routed_experts", 12)} | {
    "glm4_moe": ("n_routed_experts", 12),
    "gpt_oss": ("num_local_experts", 12),
    "granitemoe": ("num_local_experts", 12),
    "llama4_text": ("num_local_experts", 12),
}
MOE_LAYERS = {
    "qwen3_moe": (0, 2, 3),
    "deepseek_v3": (1, 2),
    "glm4_moe": (1, 2),
    "qwen3_5_moe": (0, 1, 2),
    "llama4_text": (1, 3),
}


@pytest.mark.parametrize("family", FAMILIES)
def test_layout_equals_the_difference_of_two_models(
    family: str, tiny: Tiny, tmp_path: Path
) -> None:
    key, count = COUNT.get(family, ("num_experts", 12))
    fewer = 3 if family == "deepseek_v3" else 1  # the same number from each of its three groups
    full = CheckpointIndex.open(tiny(family))
    less = CheckpointIndex.open(tiny_checkpoint(family, tmp_path / "less", **{key: count - fewer}))
    layout = layout_of(full.config, full.tensors)
    assert layout.num_experts == (count,) * len(layout.layer_ids)
    assert layout.layer_ids == MOE_LAYERS.get(family, (0, 1))

    gone = {name for name, at in layout.tensors.items() if (at.expert or 0) >= count - fewer}
    assert gone == full.tensors.keys() - less.tensors.keys()
    assert not less.tensors.keys() - full.tensors.keys()
    for name, info in less.tensors.items():
        at = layout.tensors.get(name)
        shape = list(full.tensors[name].shape)
        if at is not None and at.axis is not None:
            shape[at.axis] -= fewer * at.block
        assert tuple(shape) == info.shape, name

    assert full.total_bytes - less.total_bytes == fewer * sum(layout.expert_bytes)
    less_layout = layout_of(less.config, less.tensors)
    assert less_layout.expert_bytes == layout.expert_bytes
    assert less_layout.tensors.keys() == layout.tensors.keys() - gone


@pytest.mark.parametrize("family", FAMILIES)
def test_modules_in_memory_have_the_stated_names(family: str, tiny: Tiny) -> None:
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModelForCausalLM

    index = CheckpointIndex.open(tiny(family))
    layout = layout_of(index.config, index.tensors)
    with init_empty_weights():
        model = AutoModelForCausalLM.from_config(AutoConfig.from_pretrained(tiny(family)))
    names = [name for name, _ in model.named_modules()]
    for module in (layout.experts_module, layout.router_module):
        found = [name for name in names if name.endswith(f".{module}") and ".layers." in name]
        assert [int(name.split(".layers.")[1].split(".")[0]) for name in found] == list(
            layout.layer_ids
        )


def test_one_layer_and_a_sharded_checkpoint(tmp_path: Path) -> None:
    path = tiny_checkpoint("olmoe", tmp_path / "one", num_hidden_layers=1, max_shard_size="40KB")
    index = CheckpointIndex.open(path)
    assert len(index.files) > 1
    layout = layout_of(index.config, index.tensors)
    assert layout.layer_ids == (0,) and layout.num_experts == (12,)
