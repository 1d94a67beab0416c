"""A search on a quantised model: refused where no export can hold its plan, else exact."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from quantisers import FP8, LOADED, edit_config, fp8_blocks, quantised, weights
from safetensors.torch import save_file
from tiny import tiny_checkpoint
from transformers import AutoTokenizer

import moeprune
from moeprune.errors import UnsupportedModelError
from moeprune.observe.load import load_causal_lm

WORDS = ["river", "rises", "in", "mountains", "reaches", "sea", "after", "seven", "days", "rain"]
SEARCH = {"generations": 3, "population": 13, "top_p": 1.0, "dtype": "float32", "ratio": 0.4}


def text(path: Path, documents: int, seed: int) -> str:
    rng = np.random.default_rng(seed)
    rows = [{"text": " ".join(rng.choice(WORDS, 12))} for _ in range(documents)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def never(*_: object) -> None:
    raise AssertionError("the search began")


@pytest.mark.parametrize("name", sorted(LOADED))
def test_a_plan_that_could_not_be_exported_is_not_searched(name: str, tmp_path: Path) -> None:
    source, _ = quantised(tmp_path / "source", LOADED[name])
    domains = {"text": text(tmp_path / "text.jsonl", 8, 0)}
    stats = moeprune.calibrate(source, domains=domains, samples=4, dtype="float32")
    words = {"method": "evoesap", "model": source, "search_text": domains, **SEARCH}
    with pytest.raises(UnsupportedModelError, match=r"no export of source .*per-layer .*pad "):
        moeprune.plan(stats, on_progress=never, **words)
    assert moeprune.plan(stats, **{**words, "generations": 0}).num_removed > 0


def test_fp8_that_can_be_padded(tmp_path: Path) -> None:
    """The ESAP that the plan states is that of the padded export, by its own logits."""
    sizes = {"hidden_size": 64, "moe_intermediate_size": 32, "num_hidden_layers": 4}
    source = tiny_checkpoint("glm4_moe", tmp_path / "model", **sizes)
    tensors: dict[str, torch.Tensor] = {}
    for name, tensor in weights(source).items():
        if ".experts." in name:
            stored, _ = fp8_blocks(tensor)
            tensors |= {name.removesuffix("weight") + end: made for end, made in stored.items()}
        else:
            tensors[name] = tensor
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    skip = ["self_attn", "mlp.gate", "shared_experts", "lm_head", "layers.0.mlp"]
    form = {**FP8, "weight_block_size": [16, 32], "modules_to_not_convert": skip}
    edit_config(source, quantization_config=form)
    calibrated = text(tmp_path / "text.jsonl", 6, 0)
    stats = moeprune.calibrate(source, domains={"text": calibrated}, dtype="float32")
    judged = text(tmp_path / "other.jsonl", 4, 1)
    plan = moeprune.plan(
        stats, method="evoesap", model=source, search_text={"text": judged}, **SEARCH
    )
    assert plan.uniform_count is None
    out = moeprune.export(source, plan=plan, output=tmp_path / "out", pad=True)
    tokenizer = AutoTokenizer.from_pretrained(source)
    models = [load_causal_lm(folder, dtype="float32") for folder in (source, out)]
    total = tokens = 0.0
    for line in Path(judged).read_text().splitlines():
        ids_1S = torch.tensor([tokenizer(json.loads(line)["text"])["input_ids"]])
        with torch.inference_mode():
            p, q = (model(input_ids=ids_1S).logits.double().softmax(-1) for model in models)
        total, tokens = total + float(torch.minimum(p, q).sum()), tokens + ids_1S.numel()
    stated = plan.details["search"]["fitness"]["best"]
    assert stated == pytest.approx(total / tokens, abs=1e-6)
