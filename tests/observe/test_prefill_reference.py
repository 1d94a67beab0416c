"""Calibration against a slow reference and a plain causal forward pass, family by family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from slow_reference import block_inputs, moe_blocks, plain_model, slow_sums
from tiny import FAMILIES

from moeprune.core.stats import FIELDS, FOLDS
from moeprune.observe.domains import Corpus
from moeprune.observe.load import load_causal_lm
from moeprune.observe.prefill import prefill
from moeprune.stages.identify import open_model


def random_documents(lengths: list[int], *, seed: int = 3) -> list[list[int]]:
    generator = np.random.default_rng(seed)
    return [[int(token) for token in generator.integers(0, 256, size=n)] for n in lengths]


def corpus_of(documents: list[list[int]], *, name: str = "d") -> Corpus:
    return Corpus(
        name=name,
        source="test",
        sha256="0",
        total=len(documents),
        numbers=tuple(range(len(documents))),
        documents=tuple(np.asarray(ids, np.int32) for ids in documents),
    )


def run(path: Path, documents: list[list[int]], **options: Any) -> dict[str, np.ndarray]:
    model = options.pop("model", None) or load_causal_lm(path)
    options = {"batch_tokens": 64, **options}
    layout = open_model(path).layout
    return dict(prefill(model, corpus_of(documents), layout=layout, **options))


@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_equals_a_token_by_token_loop(family: str, tiny: Any) -> None:
    # Five documents: a fold with two; lengths that need padding, and one of a single token.
    documents = random_documents([17, 5, 23, 1, 11])
    found = run(tiny(family), documents)
    expected = slow_sums(tiny(family), family, documents)
    assert set(found) == set(expected) == set(FIELDS)
    for name, want in expected.items():
        assert found[name].shape == want.shape, name
        np.testing.assert_allclose(found[name], want, rtol=1e-5, atol=1e-9, err_msg=name)
    assert found["tokens"].sum(axis=0).tolist() == [57] * found["tokens"].shape[1]
    assert (found["count"].sum(axis=(0, 2)) > 0).all()


@pytest.mark.parametrize("family", FAMILIES)
def test_experts_receive_what_a_plain_causal_forward_gives_them(family: str, tiny: Any) -> None:
    documents = random_documents([14, 9, 20])
    model = load_causal_lm(tiny(family))
    blocks = moe_blocks(model, family)
    received: dict[int, list[torch.Tensor]] = {layer: [] for layer in blocks}
    for layer, block in blocks.items():
        block.register_forward_pre_hook(
            lambda _module, inputs, layer=layer: received[layer].append(inputs[0].clone())
        )
    run(tiny(family), documents, model=model, batch_tokens=60)  # one batch, padded on the right
    plain = plain_model(tiny(family))
    order = sorted(range(3), key=lambda row: -len(documents[row]))
    for layer, batches in received.items():
        (hidden,) = batches
        for line, row in enumerate(order):
            want = block_inputs(plain, family, documents[row])[layer]["block"]
            have = hidden.reshape(3, 20, -1)[line, : len(documents[row])]
            torch.testing.assert_close(have, want, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("family", FAMILIES)
def test_batches_padding_side_and_shards_do_not_change_the_sums(family: str, tiny: Any) -> None:
    documents = random_documents([9, 21, 4, 13, 1, 17, 30])
    # In float64, so that what is compared is the sums and not the rounding of the forward pass.
    model = load_causal_lm(tiny(family)).double()
    layout = open_model(tiny(family)).layout
    corpus = corpus_of(documents)

    def sums(part: Corpus, **options: Any) -> dict[str, np.ndarray]:
        return dict(prefill(model, part, layout=layout, **{"batch_tokens": 1, **options}))

    one_by_one = sums(corpus)
    others = {
        "one batch": sums(corpus, batch_tokens=10_000),
        "left padding": sums(corpus, batch_tokens=10_000, padding_side="left"),
        "small batches, left": sums(corpus, batch_tokens=50, padding_side="left"),
        "three shards": add([sums(corpus.take_shard(i, 3), batch_tokens=70) for i in range(3)]),
    }
    for how, found in others.items():
        # Linear attention works in chunks of positions and in float32 whatever the model's type:
        # a shift by left padding, which calibrate never uses, moves its rounding.
        shifted = family == "qwen3_5_moe" and "left" in how
        for name, want in one_by_one.items():
            if FIELDS[name][1] == "int64":
                assert (found[name] == want).all(), (how, name)
            else:
                np.testing.assert_allclose(
                    found[name], want, rtol=5e-5 if shifted else 1e-6, err_msg=f"{how} {name}"
                )


def add(parts: list[dict[str, np.ndarray]]) -> dict[str, np.ndarray]:
    return {
        name: np.maximum.reduce([part[name] for part in parts])
        if name == "norm_max"
        else np.add.reduce([part[name] for part in parts])
        for name in parts[0]
    }


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gpt_oss", "llama4_text"])
def test_float32_sums_agree_over_batches_too(family: str, tiny: Any) -> None:
    documents = random_documents([9, 21, 4, 13, 1, 17, 30])
    one = run(tiny(family), documents, batch_tokens=1)
    all_ = run(tiny(family), documents, batch_tokens=10_000, padding_side="left")
    for name, want in one.items():
        if FIELDS[name][1] == "int64":
            assert (all_[name] == want).all(), name
        else:
            np.testing.assert_allclose(all_[name].sum(0), want.sum(0), rtol=1e-5, atol=1e-7)


def test_bfloat16_counts_add_up(tiny: Any) -> None:
    documents = random_documents([20, 33])
    model = load_causal_lm(tiny("qwen3_moe"), dtype="bfloat16")
    assert model.dtype == torch.bfloat16
    found = run(tiny("qwen3_moe"), documents, model=model)
    exact = run(tiny("qwen3_moe"), documents)
    assert (found["count"].sum(axis=2) == 3 * found["tokens"]).all()
    np.testing.assert_allclose(
        found["norm_sum"].sum(axis=(0, 2)), exact["norm_sum"].sum(axis=(0, 2)), rtol=0.05
    )
    assert found["tokens"].shape == (FOLDS, 3)
