"""What the loss-aware pass finds, against the slow reference, family by family."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from slow_loss import slow_loss_sums
from slow_reference import plain_model
from tiny import EXPERTS, tiny_checkpoint

from moeprune.core.stats import LOSS_FIELDS
from moeprune.observe.domains import Corpus
from moeprune.observe.load import load_causal_lm
from moeprune.observe.prefill import passes, prefill
from moeprune.observe.sums import FoldedSums
from moeprune.stages.identify import open_model

FAMILIES = ("qwen3_moe", "olmoe", "mixtral", "gpt_oss", "deepseek_v3", "glm4_moe")
LENGTHS = (17, 5, 23, 1, 11, 8)  # two folds have two; one document has nothing to foretell


def some_documents() -> tuple[list[list[int]], list[list[bool]]]:
    rng = np.random.default_rng(4)
    documents = [rng.integers(0, 256, n).tolist() for n in LENGTHS]
    # An answer at the end, all, two answers with a turn between, nothing, one token, no target.
    targets = [[place > 12 for place in range(17)], [place > 0 for place in range(5)]]
    targets.append([4 <= place < 9 or place > 19 for place in range(23)])
    targets += [[False], [place == 10 for place in range(11)], [False] * 8]
    return documents, targets


def corpus_of(documents: list[list[int]], targets: list[list[bool]]) -> Corpus:
    return Corpus(
        name="d", source="test", sha256="0", total=len(documents),
        numbers=tuple(range(len(documents))),
        documents=tuple(np.asarray(ids, np.int32) for ids in documents),
        targets=tuple(np.asarray(own, np.bool_) for own in targets),
    )  # fmt: skip


def loss_sums(
    model: Any, path: Path, corpus: Corpus, *, temperature: float = 1.0, **options: Any
) -> dict[str, np.ndarray]:
    layout = open_model(path).layout
    sums = FoldedSums.of(layout, loss=True, temperature=temperature)
    with closing(passes(model, corpus, sums, layout=layout, **options)) as steps:
        for _ in steps:
            pass
    return dict(sums.arrays())


def check_equal(found: dict[str, np.ndarray], want: dict[str, np.ndarray], rtol: float) -> None:
    for name in LOSS_FIELDS:
        # A sum with a sign may be nothing of what it adds up.
        atol = rtol * 1e-2 * float(np.abs(want[name]).max())
        np.testing.assert_allclose(found[name], want[name], rtol=rtol, atol=atol, err_msg=name)


@pytest.mark.parametrize(("batch_tokens", "temperature"), [(1, 3.0), (64, 1.0)])
@pytest.mark.parametrize("family", FAMILIES)
def test_every_field_equals_really_masking_and_autograd(
    family: str, batch_tokens: int, temperature: float, tiny: Any
) -> None:
    documents, targets = some_documents()
    model = load_causal_lm(tiny(family)).double()
    found = loss_sums(model, tiny(family), corpus_of(documents, targets), batch_tokens=batch_tokens)
    want = slow_loss_sums(plain_model(tiny(family)).double(), family, documents, targets)
    assert set(want) == set(LOSS_FIELDS)
    assert want["loss_tokens"].sum() == 4 + 4 + 5 + 3 + 1
    check_equal(found, want, 1e-5)
    # In the padding's place and after the last target there is nothing; elsewhere there is.
    assert (found["fisher_cf_sum"].sum(axis=0) > 0).mean() > 0.9


ODD = {
    "one choice, whose weight is 1": ("qwen3_moe", {"num_experts_per_tok": 1}),
    "one choice of groups": ("deepseek_v3", {"num_experts_per_tok": 1}),
    "one choice of two": ("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 1}),
    "none left to move in": ("olmoe", {"num_experts_per_tok": EXPERTS}),
    "none left of two": ("mixtral", {"num_local_experts": 2, "num_experts_per_tok": 2}),
    "sigmoids as they are": ("deepseek_v3", {"norm_topk_prob": False}),
    "one layer": ("qwen3_moe", {"num_hidden_layers": 1, "mlp_only_layers": []}),
    "logits with a scale": ("granitemoe", {}),
}


@pytest.mark.parametrize("case", ODD)
def test_odd_shapes(case: str, tmp_path: Path) -> None:
    family, overrides = ODD[case]
    documents, targets = some_documents()
    path = tiny_checkpoint(family, tmp_path / "m", **overrides)
    found = loss_sums(
        load_causal_lm(path).double(), path, corpus_of(documents, targets), batch_tokens=64
    )
    want = slow_loss_sums(plain_model(path).double(), family, documents, targets)
    check_equal(found, want, 1e-5)


def test_float32_and_bfloat16_are_near(tiny: Any) -> None:
    documents, targets = some_documents()
    path, corpus = tiny("qwen3_moe"), corpus_of(documents, targets)
    want = loss_sums(load_causal_lm(path).double(), path, corpus, batch_tokens=64)
    single = loss_sums(load_causal_lm(path), path, corpus, batch_tokens=64)
    check_equal(single, want, 2e-3)
    half = loss_sums(load_causal_lm(path, dtype="bfloat16"), path, corpus, batch_tokens=64)
    total = [one["fisher_cf_sum"].sum(axis=(0, 2)) for one in (half, want)]
    np.testing.assert_allclose(*total, rtol=0.3)


def test_the_other_fields_are_those_of_the_plain_pass(tiny: Any) -> None:
    documents, targets = some_documents()
    path, corpus = tiny("deepseek_v3"), corpus_of(documents, targets)
    model = load_causal_lm(path)
    layout = open_model(path).layout
    before = prefill(model, corpus, layout=layout, batch_tokens=64)
    found = loss_sums(model, path, corpus, batch_tokens=64)
    after = prefill(model, corpus, layout=layout, batch_tokens=64)
    for name, want in before.items():
        assert np.array_equal(found[name], want), name
        assert np.array_equal(after[name], want), name
    assert all(not value.requires_grad or value.grad is None for value in model.parameters())
