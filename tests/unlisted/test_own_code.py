"""Checkpoints that bring their own code: read by the rule set, run only where allowed."""

from __future__ import annotations

import importlib.util
import json
import shutil
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from plans import plan_keeping
from questions import every_kind
from tiny import add_tokenizer, fill

import moeprune
from moeprune.cli.inspect_text import inspect_text
from moeprune.core.plan import PrunePlan
from moeprune.errors import MoePruneError, UnknownFamilyError, UnsupportedModelError, UsageError
from moeprune.observe.load import load_tokenizer
from moeprune.stages.identify import open_model
from moeprune.stages.inspect import inspect

CODE = Path(__file__).parent / "modeling_own.py"
TEXTS = ("The mill stood where the stream left the wood.", "1 + 2 = 3; 4 * 5 = 20")
TRUST = {"trust_remote_code": True}


@pytest.fixture(scope="module")
def own() -> Any:
    """The classes of the file, imported as the tests' own."""
    spec = importlib.util.spec_from_file_location("modeling_own_of_tests", CODE)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    spec.loader.exec_module(module)
    return module


def written(own: Any, path: Path, *, kind: str = "OwnForCausalLM", **settings: Any) -> Path:
    """A checkpoint with its code beside it and the experts one by one."""
    config = own.OwnConfig(**settings)
    # Both kinds have the same weights; the list stores them as both do on disk.
    model = own.OwnListForCausalLM(config).float().eval()
    fill(model)
    model.save_pretrained(path)
    shutil.copy(CODE, path / CODE.name)
    body = json.loads((path / "config.json").read_text())
    names = {"AutoConfig": "OwnConfig", "AutoModelForCausalLM": kind}
    body["auto_map"] = {auto: f"{CODE.stem}.{name}" for auto, name in names.items()}
    body["architectures"] = [kind]
    (path / "config.json").write_text(json.dumps(body))
    return add_tokenizer(path)


@pytest.fixture(scope="module")
def model(own: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return written(own, tmp_path_factory.mktemp("own") / "own")


@pytest.fixture(scope="module")
def listed(own: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same with the experts as a list of networks in memory."""
    return written(own, tmp_path_factory.mktemp("own") / "list", kind="OwnListForCausalLM")


@pytest.fixture
def ran(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A file that exists once the code of a checkpoint has run, from here on."""
    for name in [name for name in sys.modules if name.startswith("transformers_modules")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setenv("OWN_CODE_RAN", str(tmp_path / "ran"))
    return tmp_path / "ran"


@pytest.fixture
def text(tmp_path: Path) -> dict[str, str]:
    path = tmp_path / "text.jsonl"
    path.write_text("\n".join(json.dumps({"text": text}) for text in TEXTS))
    return {"d": str(path)}


def by_hand(model: Path) -> PrunePlan:
    """A plan that no calibration made."""
    facts = open_model(model).facts
    keep = tuple(tuple(sorted({0, 3, 4, 6, 8, 9, 10, 1 + row})) for row in range(2))
    return PrunePlan(
        model_name=facts.name,
        model_fingerprint=facts.fingerprint,
        model_type=facts.model_type,
        top_k=facts.top_k,
        layer_ids=facts.layer_ids,
        num_experts=facts.num_experts,
        keep=keep,
    )


def test_inspect_says_by_the_rule_set_and_runs_no_code(model: Path, ran: Path) -> None:
    found = inspect(model)
    assert (found.family, found.model_type, found.gating) == (
        "by the rule set",
        "own_moe",
        "unknown",
    )
    assert found.layer_ids == (1, 2) and found.num_experts == 12 and found.top_k == 3
    assert "family: by the rule set" in inspect_text(found)
    assert not ran.exists()


@pytest.mark.parametrize("kind", ["registry", "list"])
def test_a_plan_from_elsewhere_is_exported_and_verified(
    kind: str, model: Path, listed: Path, tmp_path: Path, ran: Path
) -> None:
    source = model if kind == "registry" else listed
    out = moeprune.export(source, plan=by_hand(source), output=tmp_path / "out")
    assert moeprune.verify(out, source=source).ok
    with pytest.raises(UsageError, match=r"own_moe.*--trust-remote-code") as caught:
        moeprune.verify(out, source=source, forward=True)
    assert "\n" not in str(caught.value)
    assert not ran.exists()
    report = moeprune.verify(out, source=source, forward=True, **TRUST)
    assert report.ok, report.to_text()
    assert ran.exists() and (out / CODE.name).read_bytes() == CODE.read_bytes()
    assert open_model(out).layout.num_experts == (8, 8)


def test_the_whole_job_with_the_gating_given(
    own: Any, model: Path, text: dict[str, str], tmp_path: Path
) -> None:
    stats, plan = tmp_path / "s.safetensors", tmp_path / "p.json"
    made = moeprune.calibrate(model, output=stats, domains=text, gating="sigmoid", **TRUST)
    assert made.provenance["family"] == "by the rule set" and made.model.gating == "sigmoid"
    moeprune.plan(stats, output=plan, keep=9)
    out = moeprune.export(model, plan=plan, output=tmp_path / "out")
    report = moeprune.verify(out, source=model, forward=True, **TRUST)
    assert report.ok, report.to_text()

    # The sums against the model itself, one token after the other.
    tokenizer = load_tokenizer(model, trust_remote_code=True)
    slow = own.OwnListForCausalLM.from_pretrained(model).eval()
    counts, gates = np.zeros((2, 12)), np.zeros((2, 12))
    for document in TEXTS:
        ids = tokenizer(document)["input_ids"]
        with torch.no_grad():
            x = slow.model.embed_tokens(torch.tensor(ids))
            for number, layer in enumerate(slow.model.layers):
                if number:
                    _, weights, chosen = layer.mlp.gate(layer.norm(x))
                    np.add.at(counts[number - 1], chosen.numpy(), 1)
                    np.add.at(gates[number - 1], chosen.numpy(), weights.numpy())
                x = layer(x)
    arrays = made.domains[0].arrays
    np.testing.assert_array_equal(arrays["count"].sum(axis=0), counts)
    np.testing.assert_allclose(arrays["gate_sum"].sum(axis=0), gates, rtol=1e-4)


def test_calibrate_refuses_what_it_cannot_know(
    model: Path, listed: Path, text: dict[str, str], ran: Path
) -> None:
    cases: list[tuple[Path, type[MoePruneError], str, dict[str, Any]]] = [
        (model, UsageError, r"own_moe.*--trust-remote-code", {"gating": "sigmoid"}),
        (model, UsageError, r"own_moe.*--gating softmax, sigmoid", TRUST),
        (model, UsageError, r"no gating named 'relu'", {**TRUST, "gating": "relu"}),
        (model, UsageError, r"Give --gating sigmoid", {**TRUST, "gating": "softmax"}),
        (listed, UnsupportedModelError, r"ModuleList", {**TRUST, "gating": "sigmoid"}),
    ]
    for number, (source, error, message, options) in enumerate(cases):
        with pytest.raises(error, match=message) as caught:
            moeprune.calibrate(source, domains=text, **options)
        assert "\n" not in str(caught.value)
        assert ran.exists() == (number > 2), message


def test_a_gating_is_only_taken_where_none_is_known(tiny: Any, text: dict[str, str]) -> None:
    with pytest.raises(UsageError, match=r"qwen3_moe is known \(softmax\)"):
        moeprune.calibrate(tiny("qwen3_moe"), domains=text, gating="sigmoid")


def test_neither_listed_nor_known_nor_code_is_refused(model: Path, tmp_path: Path) -> None:
    shutil.copytree(model, tmp_path / "m")
    body = json.loads((tmp_path / "m" / "config.json").read_text())
    del body["auto_map"]
    (tmp_path / "m" / "config.json").write_text(json.dumps(body))
    with pytest.raises(UnknownFamilyError, match="own_moe"):
        inspect(tmp_path / "m")


def test_names_beside_the_rule_set_are_refused(own: Any, tmp_path: Path) -> None:
    """A second tensor that counts experts, under a name nobody knows."""
    from safetensors.torch import load_file, save_file

    path = written(own, tmp_path / "m")
    tensors = load_file(path / "model.safetensors")
    tensors["model.layers.1.mlp.gate.novelty"] = torch.zeros(12)
    save_file(tensors, path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UnsupportedModelError, match="novelty"):
        inspect(path)


def test_read_a_layer_at_a_time(model: Path, text: dict[str, str], tmp_path: Path) -> None:
    how = {"domains": text, "gating": "sigmoid", "device": "cpu", **TRUST}
    moeprune.calibrate(model, output=tmp_path / "whole", **how)
    moeprune.calibrate(model, output=tmp_path / "waves", memory="6GB", **how)
    assert (tmp_path / "whole").read_bytes() == (tmp_path / "waves").read_bytes()


def test_it_is_evaluated_where_its_code_may_run(model: Path, tmp_path: Path, ran: Path) -> None:
    """As its export, question by question; and not at all where its code may not run."""
    tasks = [every_kind(tmp_path)[place] for place in (0, 1)]
    with pytest.raises(UsageError, match="--trust-remote-code"):
        moeprune.eval(model, tasks=tasks, device="cpu")
    assert not ran.exists()
    facts = open_model(model).facts
    plan = plan_keeping(model, [sorted(set(range(count)) - {1}) for count in facts.num_experts])
    out = moeprune.export(model, plan=plan, output=tmp_path / "out")
    words: dict[str, Any] = {"tasks": tasks, "device": "cpu", **TRUST}
    whole, masked = moeprune.eval(model, variants={"whole": None, "masked": plan}, **words)
    assert ran.exists()
    (exported,) = moeprune.eval(out, **words)
    for mine, theirs, one in zip(masked.samples, exported.samples, whole.samples, strict=True):
        assert (mine.prediction, mine.input) == (theirs.prediction, theirs.input)
        assert one.details != mine.details
