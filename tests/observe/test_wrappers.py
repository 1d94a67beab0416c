"""A vision-language checkpoint gives the stats of the language model inside it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import add_tokenizer, fill, tiny_checkpoint, tiny_config

import moeprune
from moeprune.core.stats import FIELDS

QWEN_VISION = {
    "depth": 1,
    "hidden_size": 16,
    "intermediate_size": 16,
    "num_heads": 2,
    "out_hidden_size": 32,
    "deepstack_visual_indexes": [],
}
LLAMA_VISION = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vision_output_dim": 16,
    "projector_input_dim": 16,
    "projector_output_dim": 16,
    "image_size": 56,
    "patch_size": 14,
}
MROPE = {"rope_type": "default", "rope_theta": 1e4, "mrope_section": [2, 1, 1]}


def wrapper(name: str, class_name: str, text: dict[str, Any], vision: dict[str, Any]) -> Any:
    import transformers

    config = transformers.AutoConfig.for_model(name, text_config=text, vision_config=vision)
    model = getattr(transformers, class_name)(config).float().eval()
    fill(model)
    return model


def text_settings(family: str, **overrides: Any) -> dict[str, Any]:
    settings = tiny_config(family, **overrides).to_dict()
    return {key: value for key, value in settings.items() if key != "architectures"}


@pytest.fixture
def texts(tmp_path: Path) -> dict[str, str]:
    rows = [{"text": f"Text {i} " + "und so weiter " * (i % 3)} for i in range(5)]
    (tmp_path / "t.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return {"d": str(tmp_path / "t.jsonl")}


@pytest.mark.parametrize(
    ("family", "name", "class_name", "vision"),
    [
        ("qwen3_5_moe", "qwen3_5_moe", "Qwen3_5MoeForConditionalGeneration", QWEN_VISION),
        ("llama4_text", "llama4", "Llama4ForConditionalGeneration", LLAMA_VISION),
    ],
)
def test_the_language_model_inside_gives_the_same_sums(
    family: str,
    name: str,
    class_name: str,
    vision: dict[str, Any],
    texts: dict[str, str],
    tmp_path: Path,
) -> None:
    from transformers import AutoModelForCausalLM

    plain = tiny_checkpoint(family, tmp_path / "plain")
    inner = AutoModelForCausalLM.from_pretrained(plain)
    model = wrapper(name, class_name, text_settings(family), vision)
    body = model.get_decoder()
    source = inner.model if hasattr(body, "embed_tokens") else inner
    body.load_state_dict(source.state_dict())
    model.save_pretrained(tmp_path / "wrapped")
    add_tokenizer(tmp_path / "wrapped")
    alone = moeprune.calibrate(plain, domains=texts, batch_tokens=99).domains[0]
    inside = moeprune.calibrate(tmp_path / "wrapped", domains=texts, batch_tokens=99).domains[0]
    for field in FIELDS:
        np.testing.assert_allclose(
            inside.arrays[field], alone.arrays[field], rtol=1e-6, err_msg=field
        )


def test_a_family_without_a_causal_class_is_loaded_as_the_image_text_model(
    texts: dict[str, str], tmp_path: Path
) -> None:
    settings = text_settings("qwen3_moe", rope_parameters=MROPE)
    settings.pop("model_type")
    settings.pop("tie_word_embeddings")
    model = wrapper("qwen3_vl_moe", "Qwen3VLMoeForConditionalGeneration", settings, QWEN_VISION)
    model.save_pretrained(tmp_path / "vl")
    add_tokenizer(tmp_path / "vl")
    stats = moeprune.calibrate(tmp_path / "vl", domains=texts, batch_tokens=99)
    # One document at a time through the whole wrapper counts the same choices.
    counted = torch.zeros(12)

    def count(_module: Any, _inputs: Any, output: Any) -> None:
        counted.add_(torch.bincount(output[2].flatten(), minlength=12))

    model.model.language_model.layers[0].mlp.gate.register_forward_hook(count)
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "vl")
    with torch.no_grad():
        for line in Path(texts["d"]).read_text().splitlines():
            model(input_ids=tokenizer(json.loads(line)["text"], return_tensors="pt").input_ids)
    assert stats.domains[0].total("count")[0].tolist() == counted.tolist()
