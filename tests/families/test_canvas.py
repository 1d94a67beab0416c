"""Block diffusion: two stacks with the same experts, and texts read canvas by canvas."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from family_data import family_data, logits_of, write_checkpoint
from uneven import masked_logits, uneven_plan

import moeprune
from moeprune.core.layout import MoeLayout
from moeprune.core.stats import FIELDS
from moeprune.errors import UnsupportedModelError
from moeprune.evaluate.logits import compare_logits, prompt_logits
from moeprune.observe.domains import Corpus
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.observe.observers.canvas import noisy
from moeprune.observe.prefill import prefill
from moeprune.routing.mask import masked_experts
from moeprune.stages.identify import open_model

LENGTHS = (9, 21, 4, 13, 1, 17, 40, 2, 10)  # canvases hold 8 tokens, windows 12
Sums = dict[str, np.ndarray]


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_checkpoint(family_data("diffusion_gemma"), tmp_path_factory.mktemp("m") / "m")


@pytest.fixture(scope="module")
def layout(source: Path) -> MoeLayout:
    return open_model(source).layout


def corpus_of(lengths: tuple[int, ...]) -> Corpus:
    draw = np.random.default_rng(5)
    return Corpus(
        name="d",
        source="test",
        sha256="0",
        total=len(lengths),
        numbers=tuple(range(len(lengths))),
        documents=tuple(draw.integers(0, 256, size=n).astype(np.int32) for n in lengths),
    )


def canvas_of(number: int, start: int, *, size: int = 8, vocabulary: int = 10**6) -> np.ndarray:
    ids_1C = np.full((1, size), -1)
    options = {"start": start, "length": 8, "vocabulary": vocabulary}
    return noisy(ids_1C, np.array([number]), **options)[0]


@pytest.mark.parametrize("padding_side", ["right", "left"])
def test_batches_padding_side_and_shards_do_not_change_the_sums(
    padding_side: str, source: Path, layout: MoeLayout
) -> None:
    model = load_causal_lm(source).double()
    corpus = corpus_of(LENGTHS)

    def sums(part: Corpus, **options: Any) -> Sums:
        options = {"padding_side": padding_side, **options}
        return dict(prefill(model, part, layout=layout, **options))

    one_by_one = sums(corpus, batch_tokens=1)
    shards = [sums(corpus.take_shard(i, 3), batch_tokens=70) for i in range(3)]
    added = {
        name: np.max([part[name] for part in shards], axis=0)
        if name == "norm_max"
        else np.sum([part[name] for part in shards], axis=0)
        for name in FIELDS
    }
    others = (sums(corpus, batch_tokens=10_000), sums(corpus, batch_tokens=45), added)
    for found in others:
        for name, want in one_by_one.items():
            if FIELDS[name][1] == "int64":
                assert (found[name] == want).all(), name
            else:  # the family's norms and softmax are float32 whatever the model's type
                np.testing.assert_allclose(found[name], want, rtol=2e-5, err_msg=name)


def test_each_token_counts_once_in_either_stack(source: Path, layout: MoeLayout) -> None:
    model = load_causal_lm(source)
    seen = dict.fromkeys(("encoder", "decoder"), 0)
    for stack in seen:

        def count(_module: Any, inputs: Any, *, stack: str = stack) -> None:
            seen[stack] += len(inputs[0])

        router = model.get_submodule(f"model.{stack}").get_submodule(
            "layers.0.router" if stack == "decoder" else "language_model.layers.0.router"
        )
        router.register_forward_pre_hook(count)
    model.lm_head.register_forward_pre_hook(lambda *_: pytest.fail("the head ran"))
    found = prefill(model, corpus_of(LENGTHS), layout=layout, batch_tokens=1)
    tokens = sum(LENGTHS)
    assert seen == {"encoder": tokens, "decoder": tokens - len(LENGTHS)}
    assert (found["tokens"].sum(axis=0) == sum(seen.values())).all()


def test_a_document_of_one_token_has_no_canvas(source: Path, layout: MoeLayout) -> None:
    found = prefill(load_causal_lm(source), corpus_of((1, 1)), layout=layout, batch_tokens=9)
    assert (found["tokens"].sum(axis=0) == 2).all()


def test_canvases_are_drawn_by_document_and_place_alone() -> None:
    assert canvas_of(3, 17).tolist() == [111499, 842309, 113979, -1, -1, 857440, 659371, -1]
    assert canvas_of(0, 1).tolist() == [-1, 956792, -1, -1, -1, -1, -1, -1]
    for number, start in ((0, 1), (3, 17), (2**31, 4097)):
        whole = canvas_of(number, start)
        assert (canvas_of(number, start, size=5) == whole[:5]).all()
        both = noisy(
            np.full((2, 8), -1), np.array([9, number]), start=start, length=8, vocabulary=10**6
        )
        assert (both[1] == whole).all() and (both[0] == canvas_of(9, start)).all()
    assert canvas_of(0, 1, vocabulary=3).max() < 3


def test_shares_of_noise_are_uniform() -> None:
    drawn = [
        noisy(np.full((1, 256), -1), np.array([i]), start=1, length=256, vocabulary=9) >= 0
        for i in range(500)
    ]
    share = np.sort([noise.mean() for noise in drawn])
    assert np.abs(share - (np.arange(500) + 0.5) / 500).max() < 0.07  # Kolmogorov-Smirnov, 1 %
    place = np.mean(drawn, axis=0)  # no place of a canvas is noise more often than another
    assert np.abs(place - 0.5).max() < 5 * (0.25 / 500) ** 0.5


def test_both_stacks_share_every_row(source: Path, layout: MoeLayout) -> None:
    model = load_causal_lm(source)
    layers = moe_layers(model, layout)
    assert [layer.row for layer in layers] == [0, 0, 1, 1, 2, 2]
    for one, other in zip(layers[::2], layers[1::2], strict=True):
        assert one.experts is not other.experts and one.router is not other.router
        assert one.experts.gate_up_proj is other.experts.gate_up_proj
    with pytest.raises(UnsupportedModelError, match=r"2 modules 'layers\.0\.experts'"):
        moe_layers(model, replace(layout, stacks=()))
    with pytest.raises(UnsupportedModelError, match=r"0 modules 'writer…layers\.0\.experts'"):
        moe_layers(model, replace(layout, stacks=("writer",)))


def test_masking_reaches_both_stacks(source: Path, layout: MoeLayout) -> None:
    model = load_causal_lm(source)
    prompts = [list(range(5, 30)), list(range(90, 70, -1))]

    def masked(*stacks: str) -> list[torch.Tensor]:
        layers = moe_layers(model, replace(layout, stacks=stacks))
        with masked_experts(
            model,
            routers=[layer.router for layer in layers],
            num_experts=[layer.num_experts for layer in layers],
            removed=[(0, 3, 7)] * len(layers),
        ):
            return prompt_logits(model, prompts)

    both = masked("encoder", "decoder")
    for other in (masked("encoder"), masked("decoder"), prompt_logits(model, prompts)):
        assert compare_logits(both, other).largest > 1e-3


def test_the_drawn_canvas_is_the_same_each_time(source: Path) -> None:
    model = load_causal_lm(source)
    torch.manual_seed(7)
    one = prompt_logits(model, [[1, 2, 3], [1, 2, 3]])
    drawn = torch.rand(3)
    torch.manual_seed(7)
    assert torch.equal(torch.rand(3), drawn)  # nobody else's numbers were taken
    other = prompt_logits(model, [[1, 2, 3], [1, 2, 3]])
    assert all(torch.equal(a, b) for a, b in zip(one, other, strict=True))
    assert not torch.equal(one[0], one[1])


@pytest.fixture
def uneven(source: Path, tmp_path: Path) -> Callable[[], tuple[Path, Any]]:
    def export() -> tuple[Path, Any]:
        plan = uneven_plan(source)
        out = moeprune.export(source, plan=plan, output=tmp_path / "out", per_layer=True)
        return out, plan

    return export


def test_layers_of_different_counts_are_tied_and_saved(
    source: Path, uneven: Callable[[], tuple[Path, Any]], tmp_path: Path
) -> None:
    from transformers import AutoModelForMultimodalLM

    out, plan = uneven()
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()
    options = {"trust_remote_code": True, "dtype": "float32"}
    model, loading = AutoModelForMultimodalLM.from_pretrained(
        out, output_loading_info=True, **options
    )
    assert not any(loading.values()), loading
    counts = [len(ids) for ids in plan.keep]
    for stack in (model.model.encoder.language_model, model.model.decoder):
        assert [len(layer.experts.gate_up_proj) for layer in stack.layers] == counts
        assert len({len(layer.router.proj.weight) for layer in stack.layers}) > 1
    first = model.model.decoder.layers[0]
    first.experts.down_proj.data.zero_()
    assert not model.model.encoder.language_model.layers[0].experts.down_proj.any()
    model = AutoModelForMultimodalLM.from_pretrained(out, **options).eval()
    model.save_pretrained(tmp_path / "again")
    again = AutoModelForMultimodalLM.from_pretrained(tmp_path / "again", **options).eval()
    ids = list(range(3, 27))
    assert torch.equal(logits_of(model, ids), logits_of(again, ids))
    assert compare_logits([masked_logits(source, plan)[0]], [logits_of(model, ids)[0]]).within(1e-5)


def test_the_pruned_model_writes_what_the_masked_one_writes(
    source: Path, layout: MoeLayout, tmp_path: Path
) -> None:
    keep = (0, 2, 3, 4, 5, 7, 8, 10, 11)
    plan = replace(uneven_plan(source), keep=(keep,) * 3)
    out = moeprune.export(source, plan=plan, output=tmp_path / "out")

    def text(model: Any) -> list[int]:
        torch.manual_seed(0)
        # Few steps: a token drawn from probabilities that differ by rounding may be another one.
        prompt = torch.tensor([[5, 9, 40, 7]])
        written = model.generate(prompt, max_new_tokens=24, max_denoising_steps=3)
        return list(getattr(written, "sequences", written)[0].tolist())

    full = load_causal_lm(source)
    plain = text(full)
    layers = moe_layers(full, layout)
    with masked_experts(
        full,
        routers=[layer.router for layer in layers],
        num_experts=[layer.num_experts for layer in layers],
        removed=[plan.removed[layer.row] for layer in layers],
    ):
        masked = text(full)
    assert text(load_causal_lm(out)) == masked != plain
    assert len(masked) == 4 + 24


def test_a_model_that_denoises_has_no_decoding(source: Path, tmp_path: Path) -> None:
    (tmp_path / "d.jsonl").write_text('{"prompt": "a"}')
    how = {"domains": {"d": str(tmp_path / "d.jsonl")}, "output": tmp_path / "s", "mode": "decode"}
    with pytest.raises(UnsupportedModelError, match="by denoising whole canvases"):
        moeprune.calibrate(source, **how)
