"""Next-token layers beside layers of different counts."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch
from mtp import mtp_checkpoint
from test_next_token import generate
from uneven import uneven_plan

import moeprune
from moeprune.core.plan import PrunePlan
from moeprune.errors import UnsupportedModelError
from moeprune.stages.export import export


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return mtp_checkpoint("glm4_moe", tmp_path_factory.mktemp("mtp") / "source")


def plans(source: Path) -> tuple[PrunePlan, PrunePlan]:
    """The last layer keeps the most; the last layer keeps fewer."""
    narrow_last = uneven_plan(source)
    return replace(narrow_last, keep=narrow_last.keep[::-1]), narrow_last


def test_per_layer_with_the_widest_layer_last(source: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    wide_last, _ = plans(source)
    out = export(source, plan=wide_last, output=tmp_path / "out", per_layer=True)
    assert moeprune.verify(out, source=source, forward=True).ok
    model = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True).eval()
    assert generate(model, use_mtp=True) == generate(model)


def test_per_layer_with_a_narrow_last_layer(source: Path, tmp_path: Path) -> None:
    _, narrow_last = plans(source)
    with pytest.raises(UnsupportedModelError, match="--mtp drop"):
        export(source, plan=narrow_last, output=tmp_path / "out", per_layer=True)
    out = export(source, plan=narrow_last, output=tmp_path / "out", per_layer=True, mtp="drop")
    assert moeprune.verify(out, source=source, forward=True).ok


@pytest.mark.parametrize("mtp", ["prune", "drop"])
def test_padded(mtp: str, source: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    _, narrow_last = plans(source)
    out = export(source, plan=narrow_last, output=tmp_path / "out", pad=True, mtp=mtp)
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()
    model = AutoModelForCausalLM.from_pretrained(out).eval()
    plain = generate(model)
    assert mtp == "drop" or generate(model, use_mtp=True) == plain
    assert torch.isfinite(model(torch.tensor([plain])).logits).all()


@pytest.mark.parametrize("mtp", ["prune", "drop"])
def test_with_k1_and_k2(mtp: str, source: Path, tmp_path: Path) -> None:
    from transformers import AutoModelForCausalLM

    out = export(source, output=tmp_path / "out", k1=1, k2=4, mtp=mtp)
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()
    model = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True).eval()
    native = AutoModelForCausalLM.from_pretrained(out).eval()
    plain = generate(model)
    assert plain != generate(native)
    # Drafts of the next-token layer, which routes as ever, change nothing.
    assert mtp == "drop" or generate(model, use_mtp=True) == plain
