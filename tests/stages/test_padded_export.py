"""Padded exports: plain checkpoints that compute what the masked original computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import forked
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint
from uneven import PROMPT, masked_logits, uneven_plan

import moeprune
from moeprune.errors import UnsupportedModelError
from moeprune.evaluate.logits import compare_logits
from moeprune.stages.export import export

Tiny = Callable[[str], Path]
FAMILIES = {
    "glm4_moe": {},
    "gpt_oss": {},
    "deepseek_v3": {"n_group": 1, "topk_group": 1},
}
PLAIN = """
import sys
sys.modules["moeprune"] = None
import torch, transformers
from safetensors.torch import save_file
folder, ids, result = sys.argv[1], torch.tensor(eval(sys.argv[2])), sys.argv[3]
model, report = transformers.AutoModelForCausalLM.from_pretrained(folder, output_loading_info=True)
for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
    assert not report[kind], (kind, report[kind])
with torch.no_grad():
    logits = model.eval()(input_ids=ids, use_cache=False).logits
    tokens = model.generate(ids[:, :8], max_new_tokens=4, do_sample=False)
assert tokens.shape == (1, 12)
save_file({"logits": logits.contiguous()}, result)
"""


def stored(path: Path) -> dict[str, torch.Tensor]:
    found: dict[str, torch.Tensor] = {}
    for shard in sorted(path.glob("*.safetensors")):
        with safe_open(shard, "pt") as file:
            found |= {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    return found


@pytest.mark.parametrize("family", FAMILIES)
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loads_plainly_and_equals_the_masked_original(
    family: str, dtype: str, tmp_path: Path
) -> None:
    source = tiny_checkpoint(family, tmp_path / "source", **FAMILIES[family])
    if dtype != "float32":
        shard = source / "model.safetensors"
        tensors = {name: t.to(getattr(torch, dtype)) for name, t in load_file(shard).items()}
        save_file(tensors, shard, metadata={"format": "pt"})
    plan = replace(uneven_plan(source), keep=three_counts(uneven_plan(source).keep))
    out = export(source, plan=plan, output=tmp_path / "out", pad=True)
    assert not (out / "modeling_moeprune.py").exists()
    config = json.loads((out / "config.json").read_text())
    assert "auto_map" not in config and "moeprune" not in config
    widest = max(map(len, plan.keep))
    assert {config[k] for k in config if k.endswith(("_experts",))} >= {widest}
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()
    result = tmp_path / "seen.safetensors"
    if dtype == "float32":
        done = forked.run(["-c", PLAIN, out, PROMPT, result])
        assert done.returncode == 0, done.stderr[-3000:]
        logits = load_file(result)["logits"]
        found = compare_logits([masked_logits(source, plan)[0]], [logits[0]])
        assert found.within(1e-5), found
    # The bytes that padding takes are those that a per-layer export does not have.
    small = export(source, plan=plan, output=tmp_path / "small", per_layer=True)
    size = json.loads((out / "moeprune.json").read_text())["size"]
    wide, narrow = (
        sum(t.numel() * t.element_size() for t in stored(path).values()) for path in (out, small)
    )
    assert size["bytes_padding"] == wide - narrow > 0
    assert size["bytes_after"] == wide


def three_counts(keep: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    """No layer is whole, so that the widest one is cut too."""
    return tuple(ids[: 11 - row] for row, ids in enumerate(keep))


@pytest.mark.parametrize("family", FAMILIES)
def test_padding_is_zero_and_its_bias_low(family: str, tmp_path: Path) -> None:
    source = tiny_checkpoint(family, tmp_path / "source", **FAMILIES[family])
    plan = uneven_plan(source)
    widest = max(map(len, plan.keep))
    out = export(source, plan=plan, output=tmp_path / "out", pad=True)
    before, after = stored(source), stored(out)
    seen = 0
    for layer, ids in zip(plan.layer_ids, plan.keep, strict=True):
        mine = {n: t for n, t in after.items() if f"layers.{layer}." in n and "shared" not in n}
        for name, tensor in mine.items():
            is_bias = name.endswith(("router.bias", "e_score_correction_bias"))
            if (
                is_bias
                or name.endswith(("gate.weight", "router.weight"))
                or (family == "gpt_oss" and ".experts." in name)
            ):
                assert tensor.shape[0] == widest
                assert torch.equal(tensor[: len(ids)], before[name][list(ids)])
                pads = tensor[len(ids) :]
                assert (pads == (-1e9 if is_bias else 0)).all(), name
                seen += len(pads)
        if family != "gpt_oss":
            for number in range(len(ids), widest):
                for part in ("gate_proj", "up_proj", "down_proj"):
                    empty = after[f"model.layers.{layer}.mlp.experts.{number}.{part}.weight"]
                    assert not empty.any()
                    seen += 1
            assert f"model.layers.{layer}.mlp.experts.{widest}.up_proj.weight" not in after
    assert seen


@pytest.mark.parametrize("family", ["glm4_moe", "gpt_oss"])
def test_verify_sees_every_change_of_the_padding(family: str, tmp_path: Path) -> None:
    source = tiny_checkpoint(family, tmp_path / "source")
    plan = uneven_plan(source)
    out = export(source, plan=plan, output=tmp_path / "out", pad=True)
    shard = out / "model.safetensors"
    good = load_file(shard)
    row = len(plan.keep[1])  # the first padded expert of the second MoE layer
    if family == "glm4_moe":
        block = f"model.layers.{plan.layer_ids[1]}.mlp"
        names = [f"{block}.experts.{row}.down_proj.weight", f"{block}.gate.weight"]
        names.append(f"{block}.gate.e_score_correction_bias")
    else:
        block = f"model.layers.{plan.layer_ids[1]}.mlp"
        names = [f"{block}.experts.down_proj", f"{block}.router.weight", f"{block}.router.bias"]
    assert moeprune.verify(out, source=source).ok
    for name in names:
        bad = {key: tensor.clone() for key, tensor in good.items()}
        place = bad[name] if ".experts." in name and family == "glm4_moe" else bad[name][row]
        place.view(-1)[-1] = 0.25
        save_file(bad, shard, metadata={"format": "pt"})
        problems = moeprune.verify(out, source=source).problems
        assert len(problems) == 1 and name in problems[0], problems
    if family == "glm4_moe":
        bad = {key: tensor for key, tensor in good.items() if key != names[0]}
        save_file(bad, shard, metadata={"format": "pt"})
        assert any(
            f"{names[0]} is missing" in p for p in moeprune.verify(out, source=source).problems
        )


@pytest.mark.parametrize(
    ("family", "match"),
    [
        ("deepseek_v3", "3 groups of experts"),
        ("qwen3_moe", "not exact for qwen3_moe"),
        ("mixtral", "not exact for mixtral"),
        ("qwen3_5_moe", "not exact for qwen3_5_moe"),
    ],
)
def test_refused_where_it_is_not_exact(family: str, match: str, tiny: Tiny, tmp_path: Path) -> None:
    source = tiny(family)
    with pytest.raises(UnsupportedModelError, match=match):
        export(source, plan=uneven_plan(source), output=tmp_path / "out", pad=True)
    assert not list(tmp_path.iterdir())


def test_a_router_without_its_bias_is_refused(tmp_path: Path) -> None:
    source = tiny_checkpoint("glm4_moe", tmp_path / "source")
    shard = source / "model.safetensors"
    tensors = load_file(shard)
    del tensors["model.layers.2.mlp.gate.e_score_correction_bias"]
    save_file(tensors, shard, metadata={"format": "pt"})
    with pytest.raises(UnsupportedModelError, match="router of layer 2 has no bias"):
        export(source, plan=uneven_plan(source), output=tmp_path / "out", pad=True)


def test_shards_cut_anew_hold_the_same(tmp_path: Path) -> None:
    source = tiny_checkpoint("glm4_moe", tmp_path / "source", max_shard_size="60KB")
    plan = uneven_plan(source)
    one = export(source, plan=plan, output=tmp_path / "one", pad=True)
    two = export(source, plan=plan, output=tmp_path / "two", pad=True, shard_size="30KB")
    first, second = stored(one), stored(two)
    assert first.keys() == second.keys()
    assert all(torch.equal(first[name], second[name]) for name in first)
    assert len(list(two.glob("*.safetensors"))) > len(list(one.glob("*.safetensors"))) > 1
    for out in (one, two):
        assert moeprune.verify(out, source=source).ok


def test_the_preview_says_it(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from moeprune.cli.main import main

    source = tiny_checkpoint("glm4_moe", tmp_path / "source")
    made = uneven_plan(source)
    plan = tmp_path / "plan.json"
    made.save(plan)
    words = ["export", str(source), "-o", str(tmp_path / "out"), "--plan", str(plan), "--pad"]
    assert main([*words, "--dry-run", "--json"]) == 0
    body = json.loads(capsys.readouterr().out)
    missing = len(made.keep[0]) - len(made.keep[1])
    padded = [entry["target"] for entry in body["tensors"] if entry["action"] == "pad"]
    assert len(padded) == 3 * missing + 2  # its experts' matrices, router and bias
    assert main([*words, "--dry-run"]) == 0
    assert f"and {len(padded)} padded" in capsys.readouterr().out
    assert main(words) == 0
    told = capsys.readouterr().out
    assert "11 experts in each MoE layer, of which 10 to 11 are kept" in told
    assert "of it is padding" in told
