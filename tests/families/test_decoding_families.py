"""Decode mode of every family: what is written side by side is written alone, and one pass over it
sees what step-by-step decoding with the family's own cache sees.
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_data import family_data, family_files, write_checkpoint
from tiny import fill

from moeprune import plugins
from moeprune.core.layout import MoeLayout
from moeprune.core.stats import FIELDS
from moeprune.errors import UnsupportedModelError
from moeprune.observe import observers
from moeprune.observe.continued import continued
from moeprune.observe.generate import Completion, Decoding, generate
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.observe.prefill import prefill
from moeprune.observe.prompts import Prompts
from moeprune.observe.sums import FoldedSums
from moeprune.stages.asking import check_decodes
from moeprune.stages.identify import open_model

BUDGET = 20
# What is kept between steps is of every kind: windows, chunks, latents, convolutions, states of
# Mamba and of linear attention and rings of compressed keys.
QUICK = ("jamba", "minimax", "nemotron_h", "kimi_linear", "lfm2_moe", "bailing_hybrid", "zaya")
QUICK += ("qwen3_next", "deepseek_v4", "muse_spark", "qwen3_omni_moe")
REFUSED = {
    "diffusion_gemma": "no decoding to observe",
    "unlimited_ocr": "one pass over both does not show its decoding",
}


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, id=f"{name}-fast") for name in QUICK),
        *(pytest.param(name, id=name, marks=pytest.mark.families) for name in family_files()),
    ],
)
def test_one_pass_and_batches_equal_step_by_step_decoding(name: str, tmp_path: Path) -> None:
    path = write_checkpoint(family_data(name), tmp_path / "m")
    layout = open_model(path).layout
    if name in REFUSED:
        with pytest.raises(UnsupportedModelError, match=REFUSED[name]):
            check_decodes(layout)
        return
    model = load_causal_lm(path)
    random = np.random.default_rng(5)
    prompts = Prompts(
        name="d", source="s", sha256="", total=4, numbers=(0, 1, 2, 3), documents=(None,) * 4,
        ids=tuple(random.integers(0, 256, size=n).astype(np.int32) for n in (9, 31, 1, 17)),
    )  # fmt: skip
    # Padded on the left, side by side: every token is the most probable one after what precedes
    # it alone. Near-ties may fall either way.
    how = Decoding(max_new_tokens=BUDGET)
    done = generate(model, prompts.ids, how=how, ends=(), batch_tokens=999)
    assert [one.ids.size for one in done] == [BUDGET] * 4
    # Another copy: models of pictures remember where the last batch stood.
    alone = load_causal_lm(path)
    _, behind = stepwise(alone, layout, prompts, [one.ids.tolist() for one in done])
    assert behind < 2e-3

    # Of plain tokens: a model of pictures reads its placeholders otherwise than its text part does.
    plain = [
        Completion(ids=random.integers(0, 256, size=BUDGET).astype(np.int32), finished=False)
        for _ in done
    ]
    want, _ = stepwise(alone, layout, prompts, [one.ids.tolist() for one in plain])
    found = prefill(model, continued(prompts, plain), layout=layout, batch_tokens=999)
    for field, (_, dtype, _) in FIELDS.items():
        exact = dtype == "int64"
        np.testing.assert_allclose(
            found[field], want[field], rtol=0 if exact else 5e-5,
            atol=0 if exact else 2e-5 * want[field].max(), err_msg=field,
        )  # fmt: skip


def stepwise(
    model: Any, layout: MoeLayout, prompts: Prompts, completions: Sequence[list[int]]
) -> tuple[Any, float]:
    """The sums while tokens are fed one by one to a prompt's cache; and by how much, relative to
    the largest logit, the given tokens were at most behind the most probable ones.
    """
    sums = FoldedSums(
        layer_ids=layout.layer_ids,
        num_experts=layout.num_experts,
        gating=layout.gating,
        gate_scale=layout.gate_scale,
        num_idle=layout.idle_experts,
    )
    observer = plugins.load(observers, layout.observer)
    layers, behind = moe_layers(model, layout), 0.0
    with torch.inference_mode():
        for number, ids, tokens in zip(prompts.numbers, prompts.ids, completions, strict=True):
            out = model(torch.from_numpy(ids)[None].long(), use_cache=True)
            for place, token in enumerate(tokens):
                logits = out.logits[0, -1].float()
                behind = max(behind, float((logits.max() - logits[token]) / logits.abs().max()))
                if place == len(tokens) - 1:
                    break  # the last token is never fed back
                with observer.observing(model, layers=layers, sums=sums):
                    sums.begin(np.array([[number % 4]]))
                    out = model(torch.tensor([[token]]), cache=out.cache, use_cache=True)
                    sums.end()
    return sums.arrays(), behind


@pytest.mark.parametrize("first", ["linear_attention", "full_attention"])
def test_minimax_pads_only_where_its_cache_knows_its_length(first: str, tmp_path: Path) -> None:
    """As published it begins with linear attention; the tiny one of the other tests does not."""
    layers = [first, "full_attention", "linear_attention"]
    data = family_data("minimax")
    model = load_causal_lm(write_checkpoint(data, tmp_path / "m"))
    config = copy.deepcopy(model.config)
    config.layer_types, config.sliding_window = layers, None
    model = type(model)(config).eval()
    fill(model)
    random = np.random.default_rng(5)
    prompts = [random.integers(0, 256, size=n).astype(np.int32) for n in (9, 31, 1, 17)]
    how = Decoding(max_new_tokens=BUDGET)
    done = generate(model, prompts, how=how, ends=(), batch_tokens=999)
    for prompt, one in zip(prompts, done, strict=True):
        ids = prompt.tolist()
        for token in one.ids.tolist():
            with torch.inference_mode():
                logits = model(torch.tensor([ids]), use_cache=False).logits[0, -1]
            assert logits.max() - logits[token] < 2e-3
            ids.append(token)
