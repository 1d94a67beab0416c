"""Observing leaves no trace, runs no head, and refuses what it cannot see."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from slow_reference import moe_blocks
from tiny import FAMILIES, tiny_checkpoint
from torch import nn

from moeprune.core.layout import MoeLayout
from moeprune.errors import CheckpointError, StatsError, UnsupportedModelError
from moeprune.observe.dispatch import looks_normalised
from moeprune.observe.domains import Corpus
from moeprune.observe.load import decoder_of, load_causal_lm
from moeprune.observe.observers.function import experts_forward
from moeprune.observe.prefill import prefill
from moeprune.stages.identify import open_model

IDS = tuple(np.arange(5 + row, 17 - row, dtype=np.int32) for row in range(3))
CORPUS = Corpus(
    name="d", source="s", sha256="", total=3, numbers=(0, 1, 2), documents=IDS
)  # fmt: skip


def layout_of(path: Path) -> MoeLayout:
    return open_model(path).layout


def all_hooks(model: nn.Module) -> int:
    return sum(
        len(module._forward_hooks) + len(module._forward_pre_hooks) for module in model.modules()
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_the_model_is_left_as_it_was_and_its_head_never_runs(family: str, tiny: Any) -> None:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    model = load_causal_lm(tiny(family))
    former, known = model.config._experts_implementation, set(ALL_EXPERTS_FUNCTIONS)
    hooks = all_hooks(model)
    before = model(torch.from_numpy(IDS[0].astype(np.int64))[None]).logits

    def fail(*_: Any) -> None:
        raise AssertionError("the head ran")

    guard = model.get_output_embeddings().register_forward_pre_hook(fail)
    prefill(model, CORPUS, layout=layout_of(tiny(family)), batch_tokens=100)
    guard.remove()
    assert model.config._experts_implementation == former
    assert set(ALL_EXPERTS_FUNCTIONS) == known
    assert all_hooks(model) == hooks
    after = model(torch.from_numpy(IDS[0].astype(np.int64))[None]).logits
    assert torch.equal(before, after)


def test_the_model_is_left_as_it_was_after_an_error_too(tiny: Any) -> None:
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    model = load_causal_lm(tiny("qwen3_moe"))
    model.set_experts_implementation("eager")
    known, hooks = set(ALL_EXPERTS_FUNCTIONS), all_hooks(model)

    def interrupt(_: int) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prefill(
            model,
            CORPUS,
            layout=layout_of(tiny("qwen3_moe")),
            batch_tokens=10,
            on_tokens=interrupt,
        )
    assert model.config._experts_implementation == "eager"
    assert (set(ALL_EXPERTS_FUNCTIONS), all_hooks(model)) == (known, hooks)


@pytest.mark.parametrize("family", [name for name in FAMILIES if name != "llama4_text"])
def test_the_observing_function_equals_the_librarys_eager_experts(family: str, tiny: Any) -> None:
    model = load_causal_lm(tiny(family))
    model.set_experts_implementation("eager")
    block = next(iter(moe_blocks(model, family).values()))
    generator = torch.Generator().manual_seed(1)
    hidden_TH = torch.randn(40, 32, generator=generator)
    experts = block.experts.num_experts
    scores_TE = torch.rand(40, experts, generator=generator)
    for top_k in (1, 3, experts):  # every expert for every token is routing too
        weights_TK, ids_TK = scores_TE.topk(top_k)
        with torch.inference_mode():
            want = block.experts(hidden_TH, ids_TK, weights_TK)
            found, norms_TK = experts_forward(
                block.experts, hidden_TH, ids_TK, weights_TK, num_experts=experts
            )
            torch.testing.assert_close(found, want, rtol=1e-5, atol=1e-5)
            one = block.experts(hidden_TH[:1], ids_TK[:1, -1:], torch.ones(1, 1))
        torch.testing.assert_close(norms_TK[0, -1], one.norm(), rtol=1e-5, atol=1e-6)


def test_an_unknown_observer_is_refused_before_anything_runs(tiny: Any) -> None:
    layout = replace(layout_of(tiny("qwen3_moe")), observer="dbrx")
    with pytest.raises(
        UnsupportedModelError,
        match=r"cannot see the experts of family .* \(observer 'dbrx'; there are canvas, function",
    ):
        prefill(None, CORPUS, layout=layout, batch_tokens=10)


@pytest.mark.parametrize("field", ["experts_module", "router_module"])
def test_a_layer_without_its_modules_is_named(field: str, tiny: Any) -> None:
    layout = replace(layout_of(tiny("qwen3_moe")), **{field: "mlp.nothing"})
    with pytest.raises(
        UnsupportedModelError, match=r"layer 0 .* 0 modules 'layers\.0\.mlp\.nothing'"
    ):
        prefill(load_causal_lm(tiny("qwen3_moe")), CORPUS, layout=layout, batch_tokens=10)


def test_experts_that_are_not_dispatched_are_named(tiny: Any) -> None:
    """Llama 4's experts never reach the registry: without its own observer nothing reports."""
    layout = replace(layout_of(tiny("llama4_text")), observer="function")
    with pytest.raises(UnsupportedModelError, match="layer 1: its experts are a Llama4TextExperts"):
        prefill(load_causal_lm(tiny("llama4_text")), CORPUS, layout=layout, batch_tokens=10)


def test_quantised_experts_are_named(tiny: Any) -> None:
    model = load_causal_lm(tiny("qwen3_moe"))
    experts = moe_blocks(model, "qwen3_moe")[2].experts
    experts.gate_up_proj.data = experts.gate_up_proj.data.to(torch.float8_e4m3fn)
    with pytest.raises(UnsupportedModelError, match=r"layer 2: .* with quantised weights"):
        prefill(model, CORPUS, layout=layout_of(tiny("qwen3_moe")), batch_tokens=10)


def test_a_layer_that_is_skipped_is_named(tiny: Any) -> None:
    model = load_causal_lm(tiny("qwen3_moe"))
    model.model.layers[2].mlp.forward = lambda hidden: hidden
    with pytest.raises(StatsError, match="layer 2: its experts or its router never reported"):
        prefill(model, CORPUS, layout=layout_of(tiny("qwen3_moe")), batch_tokens=10)


def run_with_router(path: Path, change: Any) -> None:
    model = load_causal_lm(path)
    for block in moe_blocks(model, "qwen3_moe").values():
        # Before the observer's own hook, so that the observer sees a router that returns this.
        block.gate.register_forward_hook(lambda _m, _i, output: change(*output))
    prefill(model, CORPUS, layout=layout_of(path), batch_tokens=100)


def test_routers_that_return_something_else_are_refused(tiny: Any) -> None:
    path = tiny("qwen3_moe")
    with pytest.raises(UnsupportedModelError, match="layer 0: the router returns probabilities"):
        run_with_router(path, lambda logits, w, ids: (logits.softmax(-1), w, ids))
    with pytest.raises(UnsupportedModelError, match="layer 0: the router returns no logits"):
        run_with_router(path, lambda logits, w, ids: (ids, w, ids))
    with pytest.raises(UnsupportedModelError, match=r"layer 0: the router gives \[\d+, 13\]"):
        run_with_router(
            path, lambda logits, w, ids: (torch.cat([logits, logits[:, :1]], dim=1), w, ids)
        )
    with pytest.raises(UnsupportedModelError, match="chose expert 13 of 12"):
        run_with_router(path, lambda logits, w, ids: (logits, w, torch.full_like(ids, 13)))


def test_logits_are_not_taken_for_probabilities() -> None:
    assert not looks_normalised(torch.randn(9, 12))
    assert not looks_normalised(torch.zeros(9, 12))
    assert looks_normalised(torch.randn(9, 12).softmax(-1).bfloat16())


@pytest.mark.parametrize("family", FAMILIES)
def test_the_decoder_has_no_head(family: str, tiny: Any) -> None:
    model = load_causal_lm(tiny(family))
    decoder = decoder_of(model)
    assert model.get_output_embeddings() not in list(decoder.modules())
    assert model.get_input_embeddings() in list(decoder.modules())


def test_tokens_that_the_model_does_not_have_are_refused(tiny: Any) -> None:
    beyond = replace(CORPUS, documents=(*IDS[:2], np.asarray([5, 272], np.int32)))
    with pytest.raises(CheckpointError, match="gives token 272, the model has 272"):
        prefill(
            load_causal_lm(tiny("qwen3_moe")),
            beyond,
            layout=layout_of(tiny("qwen3_moe")),
            batch_tokens=10,
        )


@pytest.mark.parametrize(
    "overrides",
    [
        {"num_hidden_layers": 1, "mlp_only_layers": []},
        {"num_experts_per_tok": 12},
        {"num_experts": 3, "num_experts_per_tok": 3},
        {"num_experts": 2, "num_experts_per_tok": 1},
    ],
    ids=str,
)
def test_odd_shapes(overrides: dict[str, Any], tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_moe", tmp_path / "odd", **overrides)
    layout = layout_of(path)
    found = prefill(load_causal_lm(path), CORPUS, layout=layout, batch_tokens=20)
    tokens = sum(ids.size for ids in IDS)
    assert (found["count"].sum(axis=(0, 2)) == layout.top_k * tokens).all()
    if layout.top_k == max(layout.num_experts):
        assert (found["count"].sum(axis=0) == tokens).all()
        np.testing.assert_allclose(found["gate_sum"], found["prob_sum"], rtol=1e-6)
