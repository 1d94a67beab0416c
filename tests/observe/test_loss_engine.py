"""What a pass with a loss leaves behind, takes and gives, on a tiny model.

T tokens, H hidden size, V vocabulary.
"""

from __future__ import annotations

from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from streaming import corpus_of, random_documents
from tiny import tiny_checkpoint
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from moeprune.errors import CheckpointError, MoePruneError
from moeprune.observe.domains import Corpus
from moeprune.observe.load import load_causal_lm
from moeprune.observe.loss import head
from moeprune.observe.prefill import passes, prefill
from moeprune.observe.sums import FoldedSums
from moeprune.stages.identify import open_model


class Live(TorchDispatchMode):
    """The most bytes that tensors made inside took at once, by whatever held them."""

    def __init__(self) -> None:
        super().__init__()
        self.peak = 0
        self._alive: dict[int, tuple[StorageWeakRef, int]] = {}

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        found = func(*args, **(kwargs or {}))
        before = {
            one.untyped_storage()._cdata
            for one in torch.utils._pytree.tree_leaves((args, kwargs))
            if isinstance(one, torch.Tensor)
        }
        for one in torch.utils._pytree.tree_leaves(found):
            if isinstance(one, torch.Tensor):
                storage = one.untyped_storage()
                if storage._cdata not in before:
                    self._alive[storage._cdata] = (StorageWeakRef(storage), storage.nbytes())
        self._alive = {key: entry for key, entry in self._alive.items() if not entry[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self._alive.values()))
        return found


def run(model: Any, path: Path, corpus: Corpus, *, loss: bool = True, **how: Any) -> FoldedSums:
    layout = open_model(path).layout
    sums = FoldedSums.of(layout, loss=loss)
    with closing(
        passes(model, corpus, sums, **{"layout": layout, "batch_tokens": 10_000, **how})
    ) as steps:
        for _ in steps:
            pass
    return sums


def peak(path: Path, corpus: Corpus, **how: Any) -> int:
    model = load_causal_lm(path)
    run(model, path, corpus_of(random_documents([3])), **how)
    with Live() as live:
        run(model, path, corpus, **how)
    return live.peak


def test_memory_grows_by_one_input_a_layer(tmp_path: Path) -> None:
    tokens, hidden = 240, 32
    corpus = corpus_of(random_documents([tokens]))
    few, many = (
        peak(
            tiny_checkpoint(
                "qwen3_moe", tmp_path / str(depth), num_hidden_layers=depth, mlp_only_layers=[]
            ),
            corpus,
        )
        for depth in (3, 9)
    )
    inputs = 6 * tokens * hidden * 4
    assert inputs <= many - few <= 1.1 * inputs
    # The graph of one layer, which is far more than its input, is there once.
    assert few > 4 * inputs / 6


def test_logits_of_few_rows_are_there_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(head, "HEAD_ROWS", 16)
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m", vocab_size=4096, num_hidden_layers=2)
    monkeypatch.setattr(head, "HEAD_ROWS", 16)
    found = [peak(path, corpus_of(random_documents([tokens]))) for tokens in (40, 80)]
    logits = 16 * 4096 * 4
    assert found[1] - found[0] < logits


def test_a_plain_pass_says_the_same(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m")
    corpus = corpus_of(random_documents([30, 12, 25]))
    model = load_causal_lm(path)
    plain = prefill(model, corpus, layout=open_model(path).layout, batch_tokens=64)
    found = run(model, path, corpus, batch_tokens=64).arrays()
    for name, want in plain.items():
        np.testing.assert_array_equal(found[name], want, err_msg=name)
    assert found["fisher_sum"].sum() > 0


def test_a_batch_without_targets_is_read_once(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m")
    model = load_causal_lm(path)
    calls = []
    model.model.layers[0].register_forward_hook(lambda *_: calls.append(1))
    found = run(model, path, corpus_of([[5], [7], [9]])).arrays()  # nothing predicts a first token
    assert len(calls) == 1 and found["loss_tokens"].sum() == 0
    assert found["tokens"].sum() == 3 * 3 and not found["fisher_sum"].any()


def test_a_token_without_logits_is_refused(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m")
    model = load_causal_lm(path)
    model.lm_head.weight = torch.nn.Parameter(model.lm_head.weight[:100].clone())
    with pytest.raises(CheckpointError, match=r"token 150.*gives logits of 100"):
        run(model, path, corpus_of([[1, 150, 99]]))


@pytest.mark.parametrize("fails", ["forward", "backward", "head"])
def test_after_an_error_the_model_is_as_it_was(tmp_path: Path, fails: str) -> None:
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m")
    model = load_causal_lm(path)
    corpus = corpus_of(random_documents([30, 12]))
    want = run(model, path, corpus).arrays()
    calls = 0

    def spoil(_module: Any, _inputs: Any, output: torch.Tensor) -> torch.Tensor:
        nonlocal calls
        calls += 1
        due = {"forward": 1, "backward": 2, "head": 1}[fails]
        return output * torch.nan if calls == due else output

    spoilt = model.lm_head if fails == "head" else model.model.layers[2].mlp.experts
    handle = spoilt.register_forward_hook(spoil)
    with pytest.raises(CheckpointError, match="not finite"):
        run(model, path, corpus)
    handle.remove()
    assert all(weight.requires_grad and weight.grad is None for weight in model.parameters())
    assert not any("forward" in module.__dict__ for module in model.modules())
    assert torch.is_grad_enabled()
    again = run(model, path, corpus).arrays()
    for name in want:
        np.testing.assert_array_equal(again[name], want[name])
    for weight in model.parameters():
        weight.requires_grad_(False)
    run(model, path, corpus)
    assert not any(weight.requires_grad for weight in model.parameters())


def test_bfloat16_is_near_float32(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m")
    corpus = corpus_of(random_documents([60, 45, 52, 33]))
    half, whole = (
        run(load_causal_lm(path, dtype=dtype), path, corpus).arrays()
        for dtype in ("bfloat16", "float32")
    )
    assert half["loss_sum"].sum() == pytest.approx(whole["loss_sum"].sum(), rel=0.02)
    for name in ("fisher_sum", "fisher_cf_sum", "abs_cf_sum"):
        one, other = (sums[name].sum(axis=0).ravel() for sums in (half, whole))
        assert np.corrcoef(one, other)[0, 1] > 0.95, name
        assert one.sum() == pytest.approx(other.sum(), rel=0.1), name


def test_a_family_of_another_kind_is_refused_before_anything_runs(tmp_path: Path) -> None:
    path = tiny_checkpoint("qwen3_moe", tmp_path / "m")
    model = load_causal_lm(path)
    model.get_output_embeddings = lambda: None
    with pytest.raises(MoePruneError, match="no head that gives logits"):
        run(model, path, corpus_of(random_documents([30])))
    assert all(weight.requires_grad for weight in model.parameters())
