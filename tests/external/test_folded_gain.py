"""A folded gain in loaders that know no k₂: what a live policy with the same gains computes."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from folding import made_up_stats
from published import published_checkpoint
from test_loaders import LOADERS, TOKENS, TOLERANCE, largest, start

import moeprune
from moeprune.core.policy import RoutingPolicy
from moeprune.observe.load import load_causal_lm
from moeprune.stages.identify import open_model
from moeprune.stages.policies import policy_applied

pytestmark = pytest.mark.external


@pytest.mark.parametrize("loader", LOADERS)
@pytest.mark.parametrize("family", ["qwen3_moe", "mixtral", "glm4_moe"])
def test_a_loader_without_our_code_runs_k1_with_the_gain(
    family: str, loader: str, tmp_path: Path, record_property: Callable[[str, object], None]
) -> None:
    source = published_checkpoint(family, tmp_path / "source")
    out = moeprune.export(
        source, output=tmp_path / "out", k1=2, k2=5, fold_gain=made_up_stats(source)
    )
    gains = json.loads((out / "moeprune.json").read_text())["folded_gain"]["gains"]
    model = load_causal_lm(source, dtype="float32")
    ids = torch.tensor([TOKENS])
    policy = RoutingPolicy(k1=2, k2=2, gain=tuple(gains))
    with torch.no_grad(), policy_applied(model, open_model(source).layout, policy):
        wanted = model(ids, use_cache=False).logits[0]
    with torch.no_grad():
        native = model(ids, use_cache=False).logits[0]
    result = tmp_path / "seen.npz"
    ended = start(loader, out, result)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    seen = np.load(result)
    kind = "logits" if "logits" in seen else "logprobs"
    found = torch.tensor(seen[kind])
    if kind == "logprobs":
        wanted, native = (x[:-1].double().log_softmax(-1) for x in (wanted, native))
    difference, size = largest(found, wanted), wanted.abs().max().item()
    record_property(
        "figure",
        f"{loader} {seen['version']}, {family}, folded gain: largest difference of {kind} "
        f"{difference:.1e} of {size:.1f} (from the native model {largest(found, native):.1f})",
    )
    assert difference <= TOLERANCE * size
    assert largest(found, native) > 1
