"""Every family with different counts per layer: as they are, and padded where that is exact."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from family_data import FamilyData, family_data, family_files, write_checkpoint
from uneven import PROMPT, masked_logits, uneven_plan

import moeprune
from moeprune.core.plan import PrunePlan
from moeprune.core.targets import PADDABLE
from moeprune.errors import CheckpointError, UnsupportedModelError
from moeprune.evaluate.logits import compare_logits
from moeprune.observe.load import load_causal_lm
from moeprune.stages.identify import open_model

# Two MoE layers at least.
MORE: dict[str, dict[str, Any]] = {"jamba": {"num_hidden_layers": 4, "expert_layer_offset": 0}}
# Families of which layers cannot be built one by one, or do not compute the same so.
REFUSED = {"dbrx": "a config apart from the layers'", "zaya": "while it runs"}
FAST = ("llama4", "nemotron_h", "qwen3_omni_moe")


def params() -> list[Any]:
    every = [pytest.param(name, marks=pytest.mark.families, id=name) for name in family_files()]
    return [pytest.param(name, id=f"{name}-fast") for name in FAST] + every


def ungrouped(config: dict[str, Any]) -> dict[str, Any]:
    """The config with one router group at every level."""
    keys = ("n_group", "topk_group", "num_expert_group", "num_limited_groups")
    return {
        key: ungrouped(value) if isinstance(value, dict) else 1 if key in keys else value
        for key, value in config.items()
    }


def written(name: str, path: Path, *, groups: bool) -> Path:
    data = family_data(name)
    config = {**data.config, **MORE.get(name, {})}
    data = FamilyData(**{**_fields(data), "config": config if groups else ungrouped(config)})
    return write_checkpoint(data, path)


def _fields(data: FamilyData) -> dict[str, Any]:
    return {key: getattr(data, key) for key in data.__dataclass_fields__}


@torch.no_grad()
def logits(path: Path, *, trust: bool) -> torch.Tensor:
    model = load_causal_lm(path, dtype="float32", device="cpu", trust_remote_code=trust)
    torch.manual_seed(0)
    found: torch.Tensor = model(input_ids=torch.tensor(PROMPT), use_cache=False).logits
    return found


@pytest.mark.parametrize("name", params())
def test_per_layer(name: str, tmp_path: Path) -> None:
    source = written(name, tmp_path / "source", groups=True)
    plan = uneven_plan(source)
    assert plan.uniform_count is None
    if name in REFUSED:
        with pytest.raises(UnsupportedModelError, match=REFUSED[name]):
            moeprune.export(source, plan=plan, output=tmp_path / "out", per_layer=True)
        return
    out = moeprune.export(source, plan=plan, output=tmp_path / "out", per_layer=True)
    assert moeprune.verify(out, source=source).ok
    with pytest.raises(CheckpointError):
        logits(out, trust=False)
    reference = masked_logits(source, plan)
    assert compare_logits([reference[0]], [logits(out, trust=True)[0]]).within(1e-5)


@pytest.mark.parametrize("name", params())
def test_padded(name: str, tmp_path: Path) -> None:
    source = written(name, tmp_path / "source", groups=False)
    plan = uneven_plan(source)
    layout = open_model(source).layout
    assert layout.num_groups == 1
    if layout.model_type not in PADDABLE:
        with pytest.raises(UnsupportedModelError, match="not exact for"):
            moeprune.export(source, plan=plan, output=tmp_path / "out", pad=True)
        return
    out = moeprune.export(source, plan=plan, output=tmp_path / "out", pad=True)
    report = moeprune.verify(out, source=source)
    assert report.ok, report.to_text()
    reference = masked_logits(source, plan)
    assert compare_logits([reference[0]], [logits(out, trust=False)[0]]).within(1e-5)


@pytest.mark.parametrize("name", ["qwen3_vl_moe", "qwen3_5_moe"])
@torch.no_grad()
def test_a_model_that_sees_loads_as_one(name: str, tmp_path: Path) -> None:
    from transformers import AutoModel, AutoModelForImageTextToText

    source = written(name, tmp_path / "source", groups=True)
    plan = uneven_plan(source)
    out = moeprune.export(source, plan=plan, output=tmp_path / "out", per_layer=True)
    text = logits(out, trust=True)
    for auto in (AutoModelForImageTextToText, AutoModel):
        model, report = auto.from_pretrained(out, trust_remote_code=True, output_loading_info=True)
        plain = auto.from_pretrained(source)
        assert type(model).__name__ == type(plain).__name__ and isinstance(model, type(plain))
        assert not report["missing_keys"] and not report["mismatched_keys"]
        if auto is AutoModelForImageTextToText:
            found = model.eval()(input_ids=torch.tensor(PROMPT), use_cache=False).logits
            assert compare_logits([text[0]], [found[0]]).within(1e-5)


def test_rounding_that_a_model_makes_large(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The norms of Gemma 4 make 5e-5 of the last digit; one expert in another's place is more."""
    source = written("gemma4", tmp_path / "source", groups=True)
    plan = uneven_plan(source)
    out = moeprune.export(source, plan=plan, output=tmp_path / "out", per_layer=True)
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok and report.logits is not None, report.to_text()
    assert 1e-5 < report.logits.noise < 1e-3
    assert "rounding alone moves them by" in report.to_text()
    asked = moeprune.verify(out, source=source, forward=True, tolerance=1e-9)
    assert asked.logits is not None and asked.logits.noise == 0 and not asked.ok  # as asked
    removed = PrunePlan.removed.fget
    assert removed is not None

    def another(plan: PrunePlan) -> tuple[tuple[int, ...], ...]:
        """In the second layer, the first kept expert goes for the last removed one."""
        found = list(removed(plan))
        found[1] = tuple(sorted((*found[1][:-1], plan.keep[1][0])))
        return tuple(found)

    monkeypatch.setattr(PrunePlan, "removed", property(another))
    wrong = moeprune.verify(out, source=source, forward=True)
    assert not wrong.ok and "logits differ" in wrong.problems[0]
