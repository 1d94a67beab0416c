"""verify finds what a wrong export looks like: a changed byte, a lost tensor, a wrong config."""

import json
import shutil
from pathlib import Path

import pytest
from conftest import Tiny
from plans import plan_keeping
from safetensors import safe_open
from safetensors.torch import load_file, save_file

import moeprune
from moeprune.core.plan import PrunePlan
from moeprune.errors import CheckpointError, MismatchError, UsageError
from moeprune.stages.identify import open_model


def plan_for(model: Path, keep: list[int]) -> PrunePlan:
    facts = open_model(model).facts
    return plan_keeping(model, [keep] * facts.num_layers)


@pytest.fixture
def source(tiny: Tiny) -> Path:
    return tiny("qwen3_moe")


@pytest.fixture
def out(source: Path, tmp_path: Path) -> Path:
    keep = [0, 2, 3, 4, 5, 7, 9, 10]
    return moeprune.export(source, plan=plan_for(source, keep), output=tmp_path / "out")


def rewrite(out: Path, change) -> None:  # type: ignore[no-untyped-def]
    shard = out / "model.safetensors"
    tensors = load_file(shard)
    change(tensors)
    save_file(tensors, shard, metadata={"format": "pt"})


def problems(out: Path, source: Path) -> str:
    report = moeprune.verify(out, source=source)
    assert not report.ok
    assert report.to_json()["ok"] is False and "not verified" in report.to_text()
    return "\n".join(report.problems)


def test_a_good_export_is_verified(out: Path, source: Path) -> None:
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok and report.logits is not None
    assert report.logits.largest <= 1e-5
    with safe_open(out / "model.safetensors", framework="pt") as file:
        names = list(file.keys())
    assert report.tensors == len(names)
    with safe_open(source / "model.safetensors", framework="pt") as file:
        assert report.tensors + report.dropped == len(list(file.keys()))
    assert report.to_json()["logits"]["largest_difference"] == report.logits.largest


EXPERT = "model.layers.2.mlp.experts.3.down_proj.weight"
GATE = "model.layers.0.mlp.gate.weight"


def test_one_changed_value(out: Path, source: Path) -> None:
    def change(tensors) -> None:  # type: ignore[no-untyped-def]
        tensors[EXPERT][1, 1] += 1e-3

    rewrite(out, change)
    assert f"{EXPERT}: bytes differ" in problems(out, source)


def test_experts_in_the_wrong_order(out: Path, source: Path) -> None:
    def change(tensors) -> None:  # type: ignore[no-untyped-def]
        other = EXPERT.replace(".3.", ".4.")
        tensors[EXPERT], tensors[other] = tensors[other], tensors[EXPERT]

    rewrite(out, change)
    assert problems(out, source).count("bytes differ") == 2


def test_router_rows_in_the_wrong_order(out: Path, source: Path) -> None:
    rewrite(out, lambda tensors: tensors.update({GATE: tensors[GATE].flip(0).contiguous()}))
    assert f"{GATE}: bytes differ" in problems(out, source)


def test_lost_and_extra_tensors(out: Path, source: Path) -> None:
    rewrite(out, lambda tensors: tensors.update(extra=tensors.pop("model.norm.weight")))
    text = problems(out, source)
    assert "model.norm.weight is missing" in text and "extra is in the export" in text


def test_cast_tensor(out: Path, source: Path) -> None:
    rewrite(out, lambda tensors: tensors.update({GATE: tensors[GATE].half()}))
    assert f"{GATE}: is F16, the source has F32" in problems(out, source)


@pytest.mark.parametrize(
    ("key", "value"), [("num_experts_per_tok", 2), ("rms_norm_eps", 1e-3), ("new_key", True)]
)
def test_changed_config(key: str, value: object, out: Path, source: Path) -> None:
    path = out / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {key: value}))
    assert f"config.json {key}" in problems(out, source)


def test_a_count_left_at_the_old_value(out: Path, source: Path) -> None:
    shutil.copy(source / "config.json", out / "config.json")
    assert "cannot be read back" in problems(out, source)


def test_another_source(out: Path, tmp_path: Path) -> None:
    from tiny import tiny_checkpoint

    other = tiny_checkpoint("qwen3_moe", tmp_path / "other", seed=1)
    with pytest.raises(MismatchError, match="fingerprint"):
        moeprune.verify(out, source=other)


def test_the_source_itself(out: Path) -> None:
    with pytest.raises(UsageError, match="same folder"):
        moeprune.verify(out, source=out)


def test_forward_sees_what_bytes_do_not(
    out: Path, source: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If the masked reference differs, the logits check fails: here the mask removes too much."""
    kept = PrunePlan.removed.fget

    def more(plan: PrunePlan):  # type: ignore[no-untyped-def]
        return tuple((*ids, 0) for ids in kept(plan))

    monkeypatch.setattr(PrunePlan, "removed", property(more))
    report = moeprune.verify(out, source=source, forward=True)
    assert not report.ok and "logits differ" in report.problems[0]


def test_without_a_tokenizer(out: Path, source: Path, tmp_path: Path) -> None:
    bare = tmp_path / "bare"
    shutil.copytree(source, bare, ignore=shutil.ignore_patterns("tokenizer*"))
    assert moeprune.verify(out, source=bare, forward=True).ok


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"schema": "moeprune.export/2"}, "has schema moeprune.export/2"),
        ({"schema": "moeprune.plan/1"}, r"is a plan \(schema .*should be the record of an export"),
        ({"form": "padded"}, r"form 'padded' does not go with a plan that keeps \[8\] experts"),
        ({"form": "per-layer"}, "form 'per-layer' does not go with"),
    ],
)
def test_a_record_that_cannot_be(
    change: dict[str, str], message: str, out: Path, source: Path
) -> None:
    record = json.loads((out / "moeprune.json").read_text())
    (out / "moeprune.json").write_text(json.dumps(record | change))
    with pytest.raises(CheckpointError, match=message):
        moeprune.verify(out, source=source)


def test_a_key_that_was_null_is_missed(out: Path, source: Path) -> None:
    config = json.loads((out / "config.json").read_text())
    key = next(key for key, value in config.items() if value is None)
    del config[key]
    (out / "config.json").write_text(json.dumps(config))
    assert f"config.json {key}: absent, the source has None" in problems(out, source)
