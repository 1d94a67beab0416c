"""eval --k1 --k2: answers as of routers written by hand; resumed, with plans."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hand_router import PREFIX, loaded, of_task, perplexity, routed_by_hand
from plans import plan_keeping
from questions import every_kind, rows
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint

import moeprune
from moeprune.cli.main import main
from moeprune.core.run import Run
from moeprune.errors import (
    MismatchError,
    StoppedError,
    UnsupportedModelError,
    UsageError,
    VerificationError,
)

TEXTS = [f"{n} und {n * n}, größer als {n}. " * 3 for n in range(4)]
POLICIES: dict[str, dict[str, Any]] = {
    "k1=1 k2=2": {"k1": 1, "k2": 2},
    "k1=2 k2=1": {"k1": 2, "k2": 1},
    "all": {"k1": 2, "k2": "E"},
    "louder": {"k1": 4, "k2": 6, "gain": 1.5},
    "by layer": {"k1": 2, "k2": 2, "gain": [0.5, 1.0, 2.0]},
}


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("texts") / "t.jsonl"
    return str(rows(path, [{"text": text} for text in TEXTS]))


def ask(model: Path, texts: str, **words: Any) -> tuple[Run, ...]:
    return moeprune.eval(
        model, corpus={"t": texts}, chunk=50, device="cpu", dtype="float32", **words
    )


def test_as_routers_written_by_hand(tiny: Any, texts: str) -> None:
    path = tiny("qwen3_moe")
    runs = ask(path, texts, variants={"native": None, **POLICIES})
    model, tokenizer = loaded(path)
    assert tokenizer.eos_token_id == PREFIX
    found = {run.name: of_task(run, "perplexity-tuning")["per_token"] for run in runs}
    assert found["native"] == pytest.approx(perplexity(model, tokenizer, TEXTS, chunk=50), rel=1e-6)
    for name, said in POLICIES.items():
        hand = {**said, "k2": 12 if said["k2"] == "E" else said["k2"]}
        with routed_by_hand(model, path, **hand):
            wanted = perplexity(model, tokenizer, TEXTS, chunk=50)
        assert found[name] == pytest.approx(wanted, rel=1e-6), name
        assert abs(found[name] / found["native"] - 1) > 1e-5
    assert [dict(run.variant) for run in runs[:4]] == [
        {},
        {"policy": {"k1": 1, "k2": 2}},
        {"policy": {"k1": 2, "k2": 1}},
        {"policy": {"k1": 2, "k2": 12}},
    ]
    assert len({run.probe["logits"] for run in runs}) == len(runs)


def test_alone_it_is_the_same_as_among_others(tiny: Any, texts: str) -> None:
    (alone,) = ask(tiny("qwen3_moe"), texts, k1=1, k2=2)
    (among,) = ask(tiny("qwen3_moe"), texts, variants={"x": {"k1": 1, "k2": 2}})
    assert alone.samples == among.samples and alone.variant == among.variant
    assert alone.name == "qwen3_moe k1=1 k2=2"


def test_the_native_pair_is_the_model_itself(tiny: Any, texts: str) -> None:
    native, same, louder = ask(
        tiny("qwen3_moe"), texts, variants={"a": None, "b": {"k1": 3, "k2": 3}, "c": {"gain": 2.0}}
    )
    assert same.samples == native.samples and same.probe == native.probe
    assert louder.probe["logits"] != native.probe["logits"]
    assert louder.variant == {"policy": {"k1": 3, "k2": 3, "gain": 2.0}}


def test_a_policy_of_what_a_plan_leaves_is_that_of_its_export(
    tiny: Any, texts: str, tmp_path: Path
) -> None:
    model = tiny("qwen3_moe")
    keep = [[0, 2, 3, 4, 7, 8, 10, 11], [1, 2, 3, 5, 6, 7, 8, 9], [0, 1, 2, 3, 4, 5, 6, 11]]
    plan = plan_keeping(model, keep)
    out = moeprune.export(model, plan=plan, output=tmp_path / "out")
    for said in ({"k1": 2, "k2": 5}, {"k1": 2, "k2": "E"}, {"k1": 2, "k2": 10}):
        (masked,) = ask(model, texts, plan=plan, **said)
        (exported,) = ask(out, texts, **said)
        for mine, theirs in zip(masked.samples, exported.samples, strict=True):
            assert mine.details["nll"] == pytest.approx(theirs.details["nll"], rel=1e-6)
        assert masked.variant["plan"]["removed"] == 12
        assert {"plan", "policy"} == set(masked.variant)
        assert {"plan", "policy", "exported"} == set(exported.variant)


def test_every_kind_of_task_and_a_stop(tiny: Any, texts: str, tmp_path: Path) -> None:
    """Written answers too; another policy is another request."""
    model = tiny("qwen3_moe")
    tasks = every_kind(tmp_path, 4)
    words: dict[str, Any] = {"tasks": tasks, "batch_size": 4, "k1": 1, "k2": 4}
    (whole,) = ask(model, texts, output=tmp_path / "whole", **words)
    calls = iter(range(3))
    with pytest.raises(StoppedError):
        ask(model, texts, output=tmp_path / "run", stop=lambda: next(calls) == 2, **words)
    with pytest.raises(MismatchError, match="begun with another list of variants"):
        ask(model, texts, output=tmp_path / "run", **{**words, "k2": 5})
    (resumed,) = ask(model, texts, output=tmp_path / "run", **words)
    assert resumed == whole
    kinds = ("run.json", "samples.jsonl")
    assert all(
        (tmp_path / "run" / kind).read_bytes() == (tmp_path / "whole" / kind).read_bytes()
        for kind in kinds
    )


def test_what_is_refused(tiny: Any, texts: str) -> None:
    with pytest.raises(UnsupportedModelError, match="--k1 and --k2 do not fit family llama4"):
        ask(tiny("llama4_text"), texts, k1=1, k2=2)
    with pytest.raises(UsageError, match="--k1 13 is too many"):
        ask(tiny("qwen3_moe"), texts, k1=13, k2=13)
    with pytest.raises(UsageError, match="Give --k2 too"):
        ask(tiny("qwen3_moe"), texts, k1=2)


def test_from_the_command_line(
    tiny: Any, texts: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = str(tiny("qwen3_moe"))
    shared = ["--corpus", f"t={texts}", "--chunk", "50", "--device", "cpu"]
    args = ["eval", model, "-o", str(tmp_path / "a"), *shared]
    assert main([*args, "--k1", "2", "--k2", "E", "--gain", "0.5"]) == 0
    assert (
        "qwen3_moe k1=2 k2=12 gain=0.5: qwen3_moe, k1=2 k2=12 gain=0.5" in capsys.readouterr().out
    )
    for wrong in (["--k1", "2"], ["--k1", "2", "--k2", "0"], ["--k1", "2", "--k2", "all"]):
        assert main(["eval", model, "-o", str(tmp_path / "b"), *shared, *wrong]) == 2
        assert len(capsys.readouterr().err.splitlines()) == 1


def test_a_policy_that_does_not_act_is_not_measured(tmp_path: Path, texts: str) -> None:
    """Experts that give nothing: every k₁ would look as good as the native one."""
    path = tiny_checkpoint("mixtral", tmp_path / "mute")
    weights = load_file(path / "model.safetensors")
    mute = {name: value * (".w2." not in name) for name, value in weights.items()}
    assert any((value == 0).all() for value in mute.values())
    save_file(mute, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(VerificationError, match="gives the same loss as the native k1=2 k2=2"):
        ask(path, texts, variants={"native": None, "one": {"k1": 1, "k2": 2}})
    ask(path, texts, variants={"native": None})
