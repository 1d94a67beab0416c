"""Every family: the gradients of a pass that runs layers a second time are those of plain autograd.

In float64, where what both compute is the same number in nearly all families.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from family_data import family_data, params, write_checkpoint
from loss_reference import Gradients, loss_of

import moeprune
from moeprune import plugins
from moeprune.core.layout import MoeLayout
from moeprune.errors import UnsupportedModelError
from moeprune.observe import observers
from moeprune.observe.batches import Batch, batches
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.observe.loss.reading import loss_pass
from moeprune.observe.prefill import untracked
from moeprune.observe.streamed import activations
from moeprune.observe.streamed.units import layer_path
from moeprune.observe.sums import FoldedSums
from moeprune.stages.identify import open_model

sys.path.insert(0, str(Path(__file__).parents[1] / "observe"))
from streaming import assert_same, corpus_of, random_documents, streamed_sums, whole_sums

# They read texts in another way than from left to right at once.
REFUSED = ("diffusion_gemma",)
# In float64 they do not run, or padding is not a number in plain calibration either.
FLOAT32 = (
    "granitemoe_swa",
    "inkling2",
    "inkling2_loop",
    "inkling2_loop_text",
    "inkling2_text",
)
# State spaces compute in float32 in any model.
INSIDE_FLOAT32 = ("beam", "nemotron_h", "nemotron_h_omni")


@pytest.mark.parametrize("name", params())
def test_gradients(name: str, tmp_path: Path, record_property: Any) -> None:
    data = family_data(name)
    record_property("family", data.entry)
    path = write_checkpoint(data, tmp_path / "m")
    layout = open_model(path).layout
    if name in REFUSED:
        with (
            pytest.raises(UnsupportedModelError, match="without --loss-aware"),
            loss_pass(load_causal_lm(path), layout=layout),
        ):
            pass
        text = tmp_path / "t.txt"
        text.write_text("a text")
        with pytest.raises(UnsupportedModelError, match="without --loss-aware"):
            moeprune.calibrate(path, domains={"d": str(text)}, loss_aware=True)
        return
    model, plain = load_causal_lm(path), load_causal_lm(path)
    for one in (model, plain):
        if hasattr(one, "set_experts_implementation"):
            one.set_experts_implementation("eager")
    if name not in FLOAT32:
        model, plain = model.double(), plain.double()
    with torch.inference_mode():  # what it keeps of earlier texts must not be in the way
        getattr(model, "model", model)(input_ids=torch.arange(30)[None])
    exact = name not in FLOAT32 + INSIDE_FLOAT32
    for side in ("right", "left") if exact else ("right",):
        check(model, plain, layout, batch(side), tolerance=1e-10 if exact else 2e-5)


@pytest.mark.families
def test_keys_and_values_that_layers_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(activations, "_SMALL", 1)
    data = family_data("gemma4_text")
    sharing = {
        "num_hidden_layers": 5,
        "num_kv_shared_layers": 2,
        "hidden_size_per_layer_input": 8,
        "layer_types": [
            f"{kind}_attention" for kind in ["sliding", "full", "sliding", "sliding", "full"]
        ],
    }
    path = write_checkpoint(replace(data, config=data.config | sharing), tmp_path / "m")
    layout = open_model(path).layout
    model, plain = load_causal_lm(path).double(), load_causal_lm(path).double()
    plain.set_experts_implementation("eager")
    for side in ("right", "left"):
        check(model, plain, layout, batch(side), tolerance=1e-10)
    corpora = [corpus_of(random_documents([30, 17, 9, 25, 40, 12], vocab=200))]
    how: dict[str, Any] = {"batch_tokens": 60, "loss": True}
    found, _ = streamed_sums(path, corpora, positions=1000, memory=0, folder=tmp_path, **how)
    assert_same(found, whole_sums(path, corpora, **how))


def batch(side: str) -> Batch:
    corpus = corpus_of(random_documents([21, 9, 17, 1], vocab=200))
    (found,) = batches(corpus, max_tokens=1000, padding_side=side)
    found.target_BS[0, :5] = False  # a prompt
    return found


def check(model: Any, plain: Any, layout: MoeLayout, read: Batch, *, tolerance: float) -> None:
    with Gradients(watched(plain, layout)) as want:
        loss = loss_of(plain, read)
        loss.backward()
    sums, have = read_back(model, layout, read)
    assert all(weight.requires_grad for weight in model.parameters() if weight.is_floating_point())
    assert all(weight.grad is None for weight in model.parameters())
    assert not any("forward" in module.__dict__ for module in model.modules())

    arrays = sums.arrays()
    assert arrays["loss_tokens"].sum() == read.target_BS.sum()
    torch.testing.assert_close(arrays["loss_sum"].sum(), loss.item(), rtol=tolerance, atol=0)
    layers = {name for name in watched(model, layout) if name.rpartition(".")[2].isdigit()}
    # A layer's leaves are watched as it runs forward, its experts as it runs again.
    found = {
        (name, call if name in layers else have.calls[name] - 1 - call, place): value
        for (name, call, place), value in have.found.items()
    }
    assert found
    for key, gradient in want.found.items():
        if key not in found:
            # Nothing is asked of what depends on no experts: layers before the first ones, and what
            # their layer hands on beside its hidden states.
            assert before_experts(key, model, layout), key
            continue
        scale = gradient.abs().max()
        assert scale > 0, key
        assert (found[key] - gradient).abs().max() <= tolerance * scale, key


def read_back(model: Any, layout: MoeLayout, read: Batch) -> tuple[FoldedSums, Gradients]:
    sums = FoldedSums.of(layout, loss=True)
    observer = plugins.load(observers, layout.observer)
    layers = moe_layers(model, layout)
    with (
        loss_pass(model, layout=layout) as reading,
        observer.observing(model, layers=layers, sums=sums),
        Gradients(watched(model, layout)) as have,
        untracked(loss=True),
    ):
        reading(read, sums)
    return sums, have


def watched(model: Any, layout: MoeLayout) -> dict[str, Any]:
    """Modules of experts, and the layers of their stacks, by name."""
    names = {id(module): name for name, module in model.named_modules()}
    experts = {names[id(layer.experts)]: layer.experts for layer in moe_layers(model, layout)}
    stacks = {layer_path(name).rpartition(".")[0] for name in experts}
    layers = {
        f"{stack}.{number}": layer
        for stack in stacks
        for number, layer in enumerate(model.get_submodule(stack))
    }
    return experts | layers


def before_experts(key: tuple[str, int, int], model: Any, layout: MoeLayout) -> bool:
    names = {id(module): name for name, module in model.named_modules()}
    routed = {layer_path(names[id(layer.experts)]) for layer in moe_layers(model, layout)}
    stack, _, number = key[0].rpartition(".")
    if not number.isdigit():
        return False
    first = min(int(path.rpartition(".")[2]) for path in routed if path.startswith(f"{stack}."))
    return int(number) < first or (int(number) == first and key[2] > 0)
