"""The probe: equal for one model, another for another one, and of what it says it is."""

from __future__ import annotations

import hashlib
from typing import Any

import numpy as np
import pytest
import torch

from moeprune.errors import CheckpointError
from moeprune.evaluate.probe import PROMPTS, TOKENS, logits_probe
from moeprune.observe.load import load_causal_lm

CPU = torch.device("cpu")


def test_hashes(tiny: Any) -> None:
    model = load_causal_lm(tiny("olmoe"), device="cpu")
    prompts = [[1, 2, 3], [250, 7]]
    found = logits_probe(model, prompts, device=CPU)
    inputs, logits = hashlib.sha256(), hashlib.sha256()
    with torch.inference_mode():
        for ids in prompts:
            inputs.update(np.int64(len(ids)).tobytes() + np.array(ids, np.int64).tobytes())
            logits.update(model(input_ids=torch.tensor([ids])).logits.numpy().tobytes())
    assert found == {"inputs": inputs.hexdigest(), "logits": logits.hexdigest()}
    assert logits_probe(model, prompts, device=CPU) == found
    with torch.no_grad():
        model.get_input_embeddings().weight[250, 0] += 1e-3
    changed = logits_probe(model, prompts, device=CPU)
    assert changed["inputs"] == found["inputs"]
    assert changed["logits"] != found["logits"]
    assert logits_probe(model, prompts[:1], device=CPU)["inputs"] != found["inputs"]


def test_a_few_tokens_of_a_few_prompts_are_read(tiny: Any) -> None:
    model = load_causal_lm(tiny("olmoe"), device="cpu")
    long = [[5] * (TOKENS + 9)] * (PROMPTS + 2)
    short = [[5] * TOKENS] * PROMPTS
    assert logits_probe(model, long, device=CPU) == logits_probe(model, short, device=CPU)


def test_tokens_that_the_model_lacks(tiny: Any) -> None:
    model = load_causal_lm(tiny("olmoe"), device="cpu")
    with pytest.raises(CheckpointError, match="token 272, the model has 272"):
        logits_probe(model, [[1], [272]], device=CPU)
