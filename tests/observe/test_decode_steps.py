"""Decode mode counts what step-by-step decoding with a key-value cache does, family by family."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny import tiny_checkpoint

from moeprune import plugins
from moeprune.core.stats import FIELDS
from moeprune.observe import observers
from moeprune.observe.continued import continued
from moeprune.observe.generate import Completion, Decoding, generate, num_groups
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.observe.prefill import prefill
from moeprune.observe.prompts import Prompts
from moeprune.observe.sums import FoldedSums
from moeprune.stages.identify import open_model

# Attention with and without windows and chunks, latent attention, linear attention with a state,
# and Mamba layers: what is kept between steps differs in kind.
# Those that compute in float64 where their weights are: nothing but a wrong count or a wrong token
# can differ. The others round to float32 inside (routers, states of linear attention and of Mamba).
EXACT = ("qwen3_moe", "gpt_oss", "granitemoe", "llama4_text")
ROUNDED = ("deepseek_v3", "qwen3_5_moe")
BUDGET = 24


@pytest.fixture(scope="module")
def jamba(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A hybrid: Mamba and attention layers, experts in every second layer."""
    from tiny import add_tokenizer, fill
    from transformers import AutoModelForCausalLM, JambaConfig

    config = JambaConfig(
        vocab_size=272, hidden_size=32, intermediate_size=24, num_hidden_layers=4,
        num_attention_heads=4, num_key_value_heads=2, num_experts=12, num_experts_per_tok=3,
        expert_layer_period=2, expert_layer_offset=1, attn_layer_period=4, attn_layer_offset=2,
        mamba_d_state=8, mamba_d_conv=4, mamba_dt_rank=4, use_mamba_kernels=False,
        pad_token_id=256, bos_token_id=257, eos_token_id=257, max_position_embeddings=512,
    )  # fmt: skip
    path = tmp_path_factory.mktemp("jamba")
    model = AutoModelForCausalLM.from_config(config).float().eval()
    fill(model)
    model.save_pretrained(path)
    return add_tokenizer(path)


def prompts_of(lengths: list[int]) -> Prompts:
    random = np.random.default_rng(5)
    ids = tuple(random.integers(0, 256, size=n).astype(np.int32) for n in lengths)
    numbers = tuple(range(len(ids)))
    return Prompts(
        name="d", source="s", sha256="", total=len(ids), numbers=numbers, ids=ids,
        documents=(None,) * len(ids),
    )  # fmt: skip


def loaded(path: Path, *, exact: bool) -> Any:
    model = load_causal_lm(path)
    if exact:
        model = model.double()
        if open_model(path).layout.observer == "function":
            model.set_experts_implementation("eager")  # the fast one has no float64
    return model


def stepwise(
    path: Path, prompts: Prompts, budget: int, *, exact: bool = False
) -> tuple[Any, list[list[int]]]:
    """Greedy decoding of one prompt after the other, one token a forward pass, observed."""
    model, layout = loaded(path, exact=exact), open_model(path).layout
    sums = FoldedSums(
        layer_ids=layout.layer_ids,
        num_experts=layout.num_experts,
        gating=layout.gating,
        gate_scale=layout.gate_scale,
    )
    observer = plugins.load(observers, layout.observer)
    layers = moe_layers(model, layout)
    written = []
    with torch.inference_mode():
        for number, ids in zip(prompts.numbers, prompts.ids, strict=True):
            out = model(torch.from_numpy(ids)[None].long(), use_cache=True)  # prefill, unobserved
            tokens = [int(out.logits[0, -1].argmax())]
            with observer.observing(model, layers=layers, sums=sums):
                while len(tokens) < budget:
                    sums.begin(np.array([[number % 4]]))
                    out = model(
                        torch.tensor([tokens[-1:]]),
                        past_key_values=out.past_key_values,
                        use_cache=True,
                    )
                    sums.end()
                    tokens.append(int(out.logits[0, -1].argmax()))
            written.append(tokens)
    return sums.arrays(), written


def check(path: Path, *, exact: bool = False) -> None:
    prompts = prompts_of([9, 31, 1, 17, 22])
    want, written = stepwise(path, prompts, BUDGET, exact=exact)
    model, layout = loaded(path, exact=exact), open_model(path).layout
    # Side by side, padded on the left, the model writes what it writes alone.
    done = generate(
        model, prompts.ids, how=Decoding(max_new_tokens=BUDGET), ends=(), batch_tokens=140
    )
    assert [one.ids.tolist() for one in done] == written
    assert not any(one.finished for one in done)
    corpus = continued(prompts, done)
    assert corpus.num_counted == 5 * (BUDGET - 1)
    for batch_tokens in (1, 150):
        found = prefill(model, corpus, layout=layout, batch_tokens=batch_tokens)
        assert (found["count"] == want["count"]).all()
        assert (found["tokens"] == want["tokens"]).all()
        for name in set(FIELDS) - {"count", "tokens"}:
            # Of norm_max, float32 is all that is kept; one token's rounding may be a large part of
            # a small sum.
            rtol = 1e-6 if name == "norm_max" else 1e-10
            atol = 0.0 if exact else 1e-5 * want[name].max()
            np.testing.assert_allclose(
                found[name], want[name], rtol=rtol if exact else 1e-5, atol=atol, err_msg=name
            )


@pytest.mark.parametrize("family", [*EXACT, *ROUNDED])
def test_one_pass_equals_step_by_step_decoding(family: str, tiny: Any) -> None:
    check(tiny(family), exact=family in EXACT)


def test_one_pass_equals_step_by_step_decoding_with_mamba_layers(jamba: Path) -> None:
    check(jamba)


def test_prompts_are_read_but_not_counted(tiny: Any) -> None:
    """What is counted of the whole is the whole without what is counted of the prompts alone."""
    path = tiny("qwen3_moe")
    prompts = prompts_of([9, 31, 17])
    written = [
        Completion(ids=np.arange(40, 52, dtype=np.int32) + 7 * row, finished=False)
        for row in range(3)
    ]
    corpus = continued(prompts, written)
    model, layout = load_causal_lm(path), open_model(path).layout

    def sums(starts: tuple[int, ...], documents: Any = corpus.documents) -> Any:
        from dataclasses import replace

        part = replace(corpus, starts=starts, documents=documents)
        return prefill(model, part, layout=layout, batch_tokens=200)

    whole, decoded, heads = sums(()), sums(corpus.starts), sums((), prompts.ids)
    assert decoded["tokens"].sum(axis=0).tolist() == [33] * 3
    for name in set(FIELDS) - {"norm_max"}:
        np.testing.assert_allclose(
            decoded[name] + heads[name], whole[name], rtol=1e-6, atol=1e-6, err_msg=name
        )
    largest = np.maximum(decoded["norm_max"], heads["norm_max"])
    np.testing.assert_allclose(largest, whole["norm_max"], rtol=1e-5)


def test_a_completion_ends_with_its_end_token(tiny: Any) -> None:
    model = load_causal_lm(tiny("qwen3_moe"))
    prompts = prompts_of([9, 31, 17])
    free = generate(model, prompts.ids, how=Decoding(max_new_tokens=20), ends=(), batch_tokens=999)
    end = int(free[1].ids[7])
    held = generate(
        model, prompts.ids, how=Decoding(max_new_tokens=20), ends=(end,), batch_tokens=999
    )
    for one, whole in zip(held, free, strict=True):
        places = np.flatnonzero(whole.ids == end)
        assert one.finished == bool(places.size)
        length = places[0] + 1 if places.size else 20
        assert one.ids.tolist() == whole.ids[:length].tolist()
    assert held[1].finished


def test_settings_of_the_checkpoint_do_not_sample(tiny: Any) -> None:
    model = load_causal_lm(tiny("qwen3_moe"))
    prompts = prompts_of([9, 31])
    how = Decoding(max_new_tokens=20)
    plain = generate(model, prompts.ids, how=how, ends=(), batch_tokens=999)
    own = model.generation_config
    own.do_sample, own.temperature, own.repetition_penalty, own.top_k = True, 9.0, 5.0, 3
    again = generate(model, prompts.ids, how=how, ends=(), batch_tokens=999)
    assert [a.ids.tolist() for a in plain] == [b.ids.tolist() for b in again]
    assert model.generation_config is own and own.repetition_penalty == 5.0


def test_a_seed_repeats_what_was_drawn_and_leaves_the_random_state(tiny: Any) -> None:
    model = load_causal_lm(tiny("qwen3_moe"))
    prompts = prompts_of([9, 31])

    def drawn(seed: int, temperature: float) -> list[list[int]]:
        how = Decoding(max_new_tokens=20, temperature=temperature, seed=seed)
        done = generate(model, prompts.ids, how=how, ends=(), batch_tokens=999)
        return [one.ids.tolist() for one in done]

    before = torch.random.get_rng_state()
    assert drawn(1, 1.0) == drawn(1, 1.0) != drawn(2, 1.0)
    assert drawn(1, 1e-4) == drawn(1, 0.0)
    assert torch.equal(before, torch.random.get_rng_state())
    # As hot as that, no token is likelier than another: nothing cuts the tail off.
    assert len({token for ids in drawn(3, 1e4) for token in ids}) > 25


def test_code_that_comes_with_a_checkpoint_is_never_padded(tiny: Any) -> None:
    """Nobody knows whether it leaves padding on the left out."""
    model = load_causal_lm(tiny("qwen3_moe"))
    how = Decoding(max_new_tokens=4)
    prompts = [np.full(size, 7, np.int32) for size in (3, 5, 3, 5, 5, 1)]

    def batches(made: Any, room: int) -> list[list[int]]:
        done: list[list[int]] = []
        found = generate(
            made, prompts, how=how, ends=(), batch_tokens=room,
            on_done=lambda rows, _: done.append(list(rows)),
        )  # fmt: skip
        assert [one.ids.size for one in found] == [4] * 6
        assert num_groups(made, prompts, how=how, batch_tokens=room) == len(done)
        return done

    assert batches(model, 999) == [[1, 3, 4, 0, 2, 5]]

    class Own(type(model)):  # type: ignore[misc]
        pass

    Own.__module__ = "transformers_modules.own.modeling_own"
    model.__class__ = Own
    assert batches(model, 999) == [[1, 3, 4], [0, 2], [5]]
    assert batches(model, 18) == [[1, 3], [4], [0, 2], [5]]


def test_tokens_are_drawn_as_the_softmax_says(tiny: Any) -> None:
    model, number = load_causal_lm(tiny("qwen3_moe")), 2000
    prompt = np.array([5, 6, 7], np.int32)
    with torch.inference_mode():
        logits = model(torch.tensor([[5, 6, 7]])).logits[0, -1].double()
    how = Decoding(max_new_tokens=2, temperature=0.7, seed=1)
    done = generate(model, [prompt] * number, how=how, ends=(), batch_tokens=2500)
    found = np.bincount([one.ids[0] for one in done], minlength=logits.numel()) / number
    distance = {}
    for temperature in (0.5, 0.7, 1.0):
        want = torch.softmax(logits / temperature, 0).numpy()
        noise = np.sqrt(want * (1 - want) / number).sum() * 0.4  # as large as chance makes it
        distance[temperature] = np.abs(found - want).sum() / 2 / noise
    assert distance[0.7] < 1.15 < 1.3 < min(distance[0.5], distance[1.0])


def test_prompts_longer_than_a_chunk_of_attention_stand_beside_short_ones(tmp_path: Path) -> None:
    path = tiny_checkpoint("llama4_text", tmp_path / "m", attention_chunk_size=16)
    prompts = prompts_of([70, 1, 45])
    _, written = stepwise(path, prompts, 20)
    model, how = load_causal_lm(path), Decoding(max_new_tokens=20)
    done = generate(model, prompts.ids, how=how, ends=(), batch_tokens=900)
    assert [one.ids.tolist() for one in done] == written
