"""Stacks of all experts as they are published, and what their parts do in the model."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import torch
from dequantised import stored
from family_data import family_data, load, write_checkpoint
from safetensors.torch import save_file

import moeprune
from moeprune.stages.identify import open_model

EXPERT = re.compile(r"(.+[.]experts)[.](\d+)[.](gate|up|down)_proj[.]weight")
# Of families with a plain gate: what the experts give is linear in "up", and not in "gate".
GATED = ("aria", "gemma4_text", "granitemoe", "hy_v4", "inkling_text", "lara_mini", "mistral4")
GATED += ("granitemoe_swa", "inkling_mm_model", "qwen3_vl_moe", "zaya")


def rewritten(folder: Path, tensors: dict[str, torch.Tensor]) -> None:
    for old in folder.glob("*.safetensors*"):
        old.unlink()
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def same_exports(one: Path, other: Path) -> None:
    have, want = stored(one), stored(other)
    assert have.keys() == want.keys()
    assert all(torch.equal(have[name], want[name]) for name in want)
    assert json.loads((one / "config.json").read_text()) == json.loads(
        (other / "config.json").read_text()
    )


def test_stacks_that_transformers_reads_as_single_experts_too(tmp_path: Path) -> None:
    """Qwen 3.5 is published in stacks and saved in single experts: the exports are the same."""
    source = write_checkpoint(family_data("qwen3_5_moe_text"), tmp_path / "source")
    single = moeprune.export(source, output=tmp_path / "single", quantize="int8")
    tensors = stored(source)
    stacks: dict[str, dict[str, dict[int, torch.Tensor]]] = {}
    for name in list(tensors):
        found = EXPERT.fullmatch(name)
        if found is not None:
            maps = stacks.setdefault(found[1], {"gate": {}, "up": {}, "down": {}})
            maps[found[3]][int(found[2])] = tensors.pop(name)
    for module, maps in stacks.items():
        gate, up, down = (
            torch.stack([maps[one][e] for e in sorted(maps[one])]) for one in ("gate", "up", "down")
        )
        tensors[f"{module}.gate_up_proj"] = torch.cat([gate, up], dim=1)
        tensors[f"{module}.down_proj"] = down
    assert stacks
    rewritten(source, tensors)
    out = moeprune.export(source, output=tmp_path / "stacks", quantize="int8")
    assert not (out / "modeling_moeprune.py").exists()
    same_exports(out, single)


def test_stacks_that_are_published_the_other_way_round(tmp_path: Path) -> None:
    source = write_checkpoint(family_data("qwen3_vl_moe"), tmp_path / "source")
    plain = moeprune.export(source, output=tmp_path / "plain", quantize="nf4")
    tensors = stored(source)
    turned = [name for name in tensors if re.search(r"experts[.](gate_up|down)_proj$", name)]
    assert turned
    for name in turned:
        tensors[name] = tensors[name].transpose(1, 2).contiguous()
    rewritten(source, tensors)
    same_exports(moeprune.export(source, output=tmp_path / "turned", quantize="nf4"), plain)


@pytest.mark.families
@pytest.mark.parametrize("name", GATED)
@torch.no_grad()
def test_gate_and_up_are_what_they_are_called(name: str, tmp_path: Path) -> None:
    data = family_data(name)
    source = write_checkpoint(data, tmp_path / "source")
    layout = open_model(source).layout
    plain = stored(source)
    given = {}
    for scaled in ("", "gate_proj", "up_proj"):
        tensors = {key: tensor.clone() for key, tensor in plain.items()}
        for key, split in layout.splits.items():
            for slab in tensors[key] if scaled in split.maps else ():
                split.cut(slab)[split.maps.index(scaled)].mul_(2)
        rewritten(source, tensors)
        model, _ = load(data, source)
        module = next(
            one
            for path, one in model.named_modules()
            if path.endswith(f".{layout.experts_module}") and hasattr(one, "gate_up_proj")
        )
        width = max(set(module.gate_up_proj.shape[1:]) & set(module.down_proj.shape[1:]))
        hidden = torch.randn(8, width, generator=torch.Generator().manual_seed(1))
        ids = torch.arange(8)[:, None] % layout.num_experts[0]
        given[scaled] = module(hidden, ids, torch.ones(8, 1))
    torch.testing.assert_close(given["up_proj"], 2 * given[""])
    assert not torch.allclose(given["gate_proj"], 2 * given[""], rtol=1e-2)
