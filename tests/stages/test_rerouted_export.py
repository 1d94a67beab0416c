"""k₁ and k₂ in a checkpoint: the folder's own code, loaded where there is no moeprune."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from tiny import tiny_checkpoint
from uneven import PROMPT, uneven_plan

import moeprune
from moeprune.checkpoint.own_code import MODELING_FILE, modeling_text
from moeprune.core.plan import PrunePlan
from moeprune.core.policy import RoutingPolicy
from moeprune.errors import CheckpointError, MismatchError, UnsupportedModelError, UsageError
from moeprune.stages.identify import open_model

LOADER = Path(__file__).parent / "foreign_rerouted.py"
# Family -> k₁, k₂; the first is looked at more closely. E: all. tests/families has the others.
FAMILIES: dict[str, tuple[int, int | str]] = {
    "qwen3_moe": (2, 4),
    "deepseek_v3": (2, 4),
    "qwen3_5_moe": (1, "E"),
}


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_checkpoint("qwen3_moe", tmp_path_factory.mktemp("source") / "source")


@torch.no_grad()
def live_logits(
    model: Path, policy: RoutingPolicy | None = None, plan: PrunePlan | None = None
) -> torch.Tensor:
    """Of the whole model, masked by the plan and rerouted by the policy in memory."""
    from contextlib import ExitStack

    from moeprune.observe.layers import moe_layers
    from moeprune.observe.load import load_causal_lm
    from moeprune.routing.mask import masked_experts
    from moeprune.stages.policies import policy_applied

    layout = open_model(model).layout
    live = load_causal_lm(model, dtype="float32", device="cpu")
    layers = moe_layers(live, layout)
    with ExitStack() as changed:
        if plan is not None:
            mask = masked_experts(
                live,
                routers=[layer.router for layer in layers],
                num_experts=[layer.num_experts for layer in layers],
                removed=[plan.removed[layer.row] for layer in layers],
                extra=layout.extra_rows,
            )
            changed.enter_context(mask)
        if policy is not None:
            keep = None if plan is None else plan.keep
            changed.enter_context(policy_applied(live, layout, policy, keep))
        found: torch.Tensor = live(input_ids=torch.tensor(PROMPT), use_cache=False).logits.float()
        return found


@torch.no_grad()
def exported_logits(folder: Path, *, trust: bool = True) -> torch.Tensor:
    from moeprune.observe.load import load_causal_lm

    live = load_causal_lm(folder, dtype="float32", device="cpu", trust_remote_code=trust)
    found: torch.Tensor = live(input_ids=torch.tensor(PROMPT), use_cache=False).logits.float()
    return found


def even_plan(model: Path, leave: int = 2) -> PrunePlan:
    """The first experts leave every layer."""
    plan = uneven_plan(model)
    keep = tuple(tuple(range(leave, count)) for count in plan.num_experts)
    return PrunePlan(**{**{f: getattr(plan, f) for f in plan.__dataclass_fields__}, "keep": keep})


def test_loads_without_moeprune(tmp_path: Path) -> None:
    made = {}
    for family, (k1, k2) in FAMILIES.items():
        model = tiny_checkpoint(family, tmp_path / f"{family}-source")
        made[family] = (model, moeprune.export(model, output=tmp_path / family, k1=k1, k2=k2))
    variables = {**os.environ, "HF_MODULES_CACHE": str(tmp_path / "modules")}
    variables.pop("PYTHONPATH", None)
    result = tmp_path / "seen.safetensors"
    done = subprocess.run(
        [sys.executable, LOADER, str(result), *(str(out) for _, out in made.values())],
        capture_output=True,
        text=True,
        env=variables,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    seen = load_file(result)
    for family, (k1, k2) in FAMILIES.items():
        model, out = made[family]
        width = max(open_model(model).layout.num_experts)
        policy = RoutingPolicy(k1=k1, k2=width if k2 == "E" else int(k2))
        live, native = live_logits(model, policy), live_logits(model)
        assert (live - native).abs().max() > 1e-2, family
        for name, value in seen.items():
            if not name.startswith(f"{family}."):
                continue
            kind = name.partition(".")[2]
            if kind in ("body", "half"):
                assert (value.abs().max() == 0).all(), name
                continue
            want = native if kind in ("native", "again-native") else live
            assert (value - want).abs().max() <= 1e-6 * max(1.0, want.abs().max()), name
        assert (seen[f"{family}.native"] == native).all(), family
        report = moeprune.verify(out, source=model, forward=True)
        assert report.ok and "applied" in report.reference, report.to_text()


@pytest.mark.parametrize("form", ["uniform", "per_layer", "pad"])
def test_with_a_plan(form: str, source: Path, tmp_path: Path) -> None:
    if form == "pad":
        source = tiny_checkpoint("gpt_oss", tmp_path / "source")
    plan = even_plan(source) if form == "uniform" else uneven_plan(source)
    options: dict[str, Any] = {} if form == "uniform" else {form: True}
    policy = RoutingPolicy(k1=2, k2=5)
    out = moeprune.export(source, output=tmp_path / "out", plan=plan, k1=2, k2=5, **options)
    want = live_logits(source, policy, plan)
    assert (exported_logits(out) - want).abs().max() <= 1e-5
    if form == "per_layer":
        with pytest.raises(CheckpointError):
            exported_logits(out, trust=False)
    else:
        assert (
            exported_logits(out, trust=False) - live_logits(source, None, plan)
        ).abs().max() < 1e-5
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()


def test_what_the_folder_says(source: Path, tmp_path: Path) -> None:
    out = moeprune.export(source, output=tmp_path / "out", k1=2, k2="E")
    config = json.loads((out / "config.json").read_text())
    before = json.loads((source / "config.json").read_text())
    assert config.pop("auto_map") == {
        "AutoModel": "modeling_moeprune.MoePruneModel",
        "AutoModelForCausalLM": "modeling_moeprune.MoePruneForCausalLM",
    }
    assert config.pop("moeprune") == {
        "format": 1,
        "k1": 2,
        "k2": 12,
        "renormalises": True,
        "routers": {"mlp.gate": [0, 2, 3]},
    }
    assert config == before
    for file in source.iterdir():
        if file.name not in ("config.json", "README.md"):
            assert (out / file.name).read_bytes() == file.read_bytes(), file.name
    record = json.loads((out / "moeprune.json").read_text())
    assert record["plan"] is None and record["policy"] == {"k1": 2, "k2": 12}
    assert (out / MODELING_FILE).read_bytes() == modeling_text().encode()
    card = (out / "README.md").read_text()
    assert "trust_remote_code=True" in card and "| 3 → 2 |" in card and "expert-pruning" not in card
    assert moeprune.inspect(out).policy == {"k1": 2, "k2": 12}
    assert moeprune.inspect(source).policy is None


@pytest.mark.parametrize(
    ("options", "match"),
    [
        ({"k1": 2}, "--k2"),
        ({"k2": 4}, "--k1"),
        ({}, "nothing to change"),
        ({"k1": 3, "k2": 3}, "routes by itself"),
        ({"k1": 13, "k2": 13}, "--k1 13"),
        ({"k1": 0, "k2": 3}, "--k1"),
        ({"k1": 2, "k2": "all"}, "--k2"),
        ({"k1": 2, "k2": 4, "per_layer": True}, "--plan"),
        ({"k1": 2, "k2": 4, "pad": True}, "--plan"),
    ],
)
def test_what_cannot_be_asked(
    options: dict[str, Any], match: str, source: Path, tmp_path: Path
) -> None:
    with pytest.raises(UsageError, match=match) as raised:
        moeprune.export(source, output=tmp_path / "out", **options)
    assert "\n" not in str(raised.value) and not list(tmp_path.iterdir())


def test_a_layer_has_fewer_experts_than_k1(source: Path, tmp_path: Path) -> None:
    plan = even_plan(source, leave=8)
    with pytest.raises(UsageError, match="--k1 5"):
        moeprune.export(source, output=tmp_path / "out", plan=plan, k1=5, k2=5)


def test_padding_is_not_counted(tmp_path: Path) -> None:
    source = tiny_checkpoint("gpt_oss", tmp_path / "source")
    plan = uneven_plan(source)
    least = min(map(len, plan.keep))
    for k2 in (least + 1, "E"):
        with pytest.raises(UsageError, match=f"at most {least}"):
            moeprune.export(source, output=tmp_path / "out", plan=plan, k1=2, k2=k2, pad=True)
    out = moeprune.export(source, output=tmp_path / "out", plan=plan, k1=2, k2=least, pad=True)
    assert moeprune.verify(out, source=source, forward=True).ok


def test_raw_weights_of_a_padded_layer_are_not_divided(tmp_path: Path) -> None:
    """k2 = E of the narrowest layer means raw weights, which padding would turn into a sum."""
    source = tiny_checkpoint("glm4_moe", tmp_path / "source", norm_topk_prob=False)
    plan = uneven_plan(source)
    least, most = min(map(len, plan.keep)), max(map(len, plan.keep))
    for k2 in (least, most - 1):
        with pytest.raises(UsageError, match=f"at most {least - 1}"):
            moeprune.export(source, output=tmp_path / "out", plan=plan, k1=2, k2=k2, pad=True)
    for k2 in (least - 1, "E"):
        out = moeprune.export(source, output=tmp_path / f"{k2}", plan=plan, k1=2, k2=k2, pad=True)
        assert moeprune.verify(out, source=source, forward=True).ok


def test_models_with_code_of_their_own_are_refused(source: Path, tmp_path: Path) -> None:
    import shutil

    shutil.copytree(source, tmp_path / "own")
    config = json.loads((source / "config.json").read_text())
    config["auto_map"] = {"AutoModelForCausalLM": "x.Y"}
    (tmp_path / "own" / "config.json").write_text(json.dumps(config))
    with pytest.raises(UnsupportedModelError, match="code of its own"):
        moeprune.export(tmp_path / "own", output=tmp_path / "out", k1=2, k2=4)


@pytest.fixture(scope="module")
def rerouted(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return moeprune.export(source, output=tmp_path_factory.mktemp("out") / "out", k1=2, k2=4)


def test_it_is_not_measured_or_exported_again(rerouted: Path, source: Path, tmp_path: Path) -> None:
    texts = tmp_path / "texts.txt"
    texts.write_text("one\n")
    calls: list[Callable[[], Any]] = [
        lambda: moeprune.calibrate(rerouted, domains={"d": str(texts)}),
        lambda: moeprune.export(rerouted, output=tmp_path / "x", k1=1, k2=4),
        lambda: moeprune.export(rerouted, output=tmp_path / "x", plan=even_plan(source)),
    ]
    for call in calls:
        with pytest.raises(UnsupportedModelError, match=r"--k1 2 --k2 4.*made from") as raised:
            call()
        assert "\n" not in str(raised.value)


@pytest.mark.parametrize(
    "change",
    [
        {"k1": 3},
        {"k2": 5},
        {"k2": None},
        {"renormalises": False},
        {"routers": {"mlp.gate": [0, 2]}},
        {"format": 2},
        {"experts_per_layer": [12, None, 12, 12]},
    ],
)
def test_verify_sees_another_block(
    change: dict[str, Any], rerouted: Path, source: Path, tmp_path: Path
) -> None:
    import shutil

    out = tmp_path / "out"
    shutil.copytree(rerouted, out)
    config = json.loads((out / "config.json").read_text())
    config["moeprune"] |= change
    (out / "config.json").write_text(json.dumps(config))
    assert any("moeprune" in p for p in moeprune.verify(out, source=source).problems)


def test_verify_sees_another_source_code_and_top_k(
    rerouted: Path, source: Path, tmp_path: Path
) -> None:
    import shutil

    other = tiny_checkpoint("qwen3_moe", tmp_path / "other", seed=1)
    with pytest.raises(MismatchError, match="made from"):
        moeprune.verify(rerouted, source=other)
    out = tmp_path / "out"
    shutil.copytree(rerouted, out)
    mark = tmp_path / "ran"
    (out / MODELING_FILE).write_text(modeling_text() + f"\nopen({str(mark)!r}, 'w')\n")
    report = moeprune.verify(out, source=source, forward=True)
    assert not mark.exists() and report.logits is None
    assert any(MODELING_FILE in problem for problem in report.problems)
    (out / MODELING_FILE).write_bytes(modeling_text().encode())
    config = json.loads((out / "config.json").read_text())
    (out / "config.json").write_text(json.dumps({**config, "num_experts_per_tok": 2}))
    assert any("num_experts_per_tok" in p for p in moeprune.verify(out, source=source).problems)


@pytest.mark.parametrize(
    ("block", "match"),
    [
        ({"format": 2}, "format is 2"),
        ({"k1": None}, "cannot read"),
        ({"k2": "E"}, "cannot read"),
        ({"renormalises": None}, "cannot read"),
        ({"k1": 13}, "cannot run k1 = 13"),
        ({"routers": {"mlp.gate": [0, 1, 2]}}, "lacks .*layers.1.mlp.gate"),
        ({"routers": {"mlp.router": [0]}}, "lacks"),
        ({"routers": {}}, "routers"),
        ({"routers": {"mlp.gate": None}}, "cannot read"),
        ({"routers": {"mlp.gate": 3}}, "cannot read"),
        ({"experts_per_layer": None}, "cannot read"),
        ({"experts_per_layer": []}, "cannot read"),
        ({"experts_per_layer": [None, None, None, None]}, "cannot read"),
        ({"experts_per_layer": ["12", None, 12, 12]}, "cannot read"),
        ({"experts_per_layer": [12]}, "layer 2 has None experts"),
        ([1], "cannot read"),
        ("k1", "cannot read"),
        (True, "cannot read"),
        ({}, "cannot read"),
    ],
)
def test_a_damaged_block_never_loads(
    block: Any, match: str, rerouted: Path, tmp_path: Path
) -> None:
    import shutil

    from transformers import AutoModelForCausalLM

    out = tmp_path / "out"
    shutil.copytree(rerouted, out)
    config = json.loads((out / "config.json").read_text())
    config["moeprune"] = {**config["moeprune"], **block} if block and type(block) is dict else block
    (out / "config.json").write_text(json.dumps(config))
    with pytest.raises(ValueError, match=match) as raised:
        AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    assert "\n" not in str(raised.value)


def test_what_is_uploaded_while_saving_has_the_code(rerouted: Path, tmp_path: Path) -> None:
    from fakehub import serve
    from hubclient import environment

    code = (
        "import sys; from transformers import AutoModelForCausalLM as Auto; "
        "Auto.from_pretrained(sys.argv[1], trust_remote_code=True).save_pretrained("
        "sys.argv[2], push_to_hub=True, repo_id='org/again', token='x')"
    )
    with serve() as hub:
        done = subprocess.run(
            [sys.executable, "-c", code, str(rerouted), str(tmp_path / "saved")],
            env=environment(hub.url, home=tmp_path / "home"),
            capture_output=True,
            text=True,
        )
    assert done.returncode == 0, done.stderr[-2000:]
    assert hub.files[MODELING_FILE] == modeling_text().encode()
    assert "model.safetensors" in hub.files


def imported(folder: Path) -> Any:
    """The file of an export as a module."""
    import importlib.util

    (folder / "file.py").write_text(modeling_text())
    spec = importlib.util.spec_from_file_location("file", folder / "file.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Odd(torch.nn.Module):
    """A router that scores by position; what it returns, another version of transformers may."""

    def __init__(self, form: str) -> None:
        super().__init__()
        self.top_k, self.form = 3, form

    def forward(self, logits: torch.Tensor) -> Any:
        k = 3 if self.form == "its own k" else self.top_k
        weights, ids = torch.topk(logits.softmax(-1), k, dim=-1)
        parts = {"swapped": (logits, ids, weights), "two": (weights, ids), "logits": logits}
        return parts.get(self.form, (logits, weights, ids))


@pytest.mark.parametrize(
    ("family", "k2", "per_layer", "shown"),
    [
        ("qwen3_moe", 5, False, ["5"] * 3),
        ("qwen3_moe", "E", True, None),
        ("deepseek_v3", 4, False, ["4"] * 2),
        ("olmoe", 5, False, ["5"] * 2),
        ("olmoe", "E", False, ["all"] * 2),
    ],
)
def test_a_printed_model_shows_k1_and_k2(
    family: str, k2: int | str, per_layer: bool, shown: list[str] | None, tmp_path: Path
) -> None:
    from transformers import AutoModelForCausalLM

    source = tiny_checkpoint(family, tmp_path / "source")
    plan = uneven_plan(source) if per_layer else None
    out = moeprune.export(
        source, output=tmp_path / "out", plan=plan, k1=2, k2=k2, per_layer=per_layer
    )
    if shown is None:  # E is all that a layer has
        assert plan is not None
        shown = [str(len(ids)) for ids in plan.keep]
    model = AutoModelForCausalLM.from_pretrained(out, trust_remote_code=True)
    layers = [repr(layer) for layer in model.model.layers]  # like ones are printed once otherwise
    assert re.findall(r"Router\(k1=2, k2=(\w+)\)", "".join(layers)) == shown
    assert set(re.findall(r"k2=(\w+)", repr(model))) == set(shown)
    if not per_layer:
        assert "k1=" not in repr(AutoModelForCausalLM.from_pretrained(source))


def test_what_a_router_says_of_itself_stays(tmp_path: Path) -> None:
    class Linear(torch.nn.Linear):
        pass

    router = Linear(8, 12, bias=False)
    router.__class__ = imported(tmp_path)._rerouted(Linear, "forward")
    router.moeprune = {"k1": 2, "k2": 4}
    assert repr(router) == "Linear(in_features=8, out_features=12, bias=False, k1=2, k2=4)"


@pytest.mark.parametrize("form", ["swapped", "two", "logits", "its own k"])
def test_a_router_that_returns_something_else_fails(form: str, tmp_path: Path) -> None:
    file, logits = imported(tmp_path), torch.arange(12.0).view(2, 6)
    for made in (form, "right"):
        router = Odd(made)
        router.__class__ = file._rerouted(Odd, "forward")
        router.moeprune = {"k1": 2, "k2": 4, "renormalises": False, "in_order": False}
        if made == "right":
            _, weights, ids = router(logits)
            share = logits.softmax(-1).sort(descending=True).values
            torch.testing.assert_close(weights, share[:, :2] / share[:, :4].sum(-1, keepdim=True))
            assert ids.tolist() == [[5, 4], [5, 4]] and router.top_k == 3
        else:
            with pytest.raises(ValueError, match=r"Odd of transformers .* does not give 2 experts"):
                router(logits)


def test_the_file_knows_the_same_modules(tmp_path: Path) -> None:
    from moeprune.checkpoint.own_code import BLOCK, FORMAT
    from moeprune.observe.layers import ELSEWHERE
    from moeprune.routing import rule

    module = imported(tmp_path)
    assert module.ELSEWHERE.pattern == ELSEWHERE.pattern
    assert module.FORMAT == FORMAT and f"config.{BLOCK}" in modeling_text()
    own = [
        value for value in vars(rule).values() if getattr(value, "__module__", "") == rule.__name__
    ]
    assert len(own) >= 3
    for function in own:
        assert vars(module)[function.__name__].__code__.co_code == function.__code__.co_code


def test_command_line(source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from moeprune.cli.main import main

    out = tmp_path / "out"
    words = ["export", str(source), "-o", str(out)]
    for more in ([], ["--k1", "2"], ["--k2", "E"], ["--k1", "2", "--k2", "x"]):
        assert main([*words, *more]) == 2
        assert not out.exists()
    capsys.readouterr()
    words += ["--k1", "2", "--k2", "E"]
    assert main([*words, "--dry-run"]) == 0 and not out.exists()
    assert "top 12" in capsys.readouterr().out
    assert main([*words, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["policy"] == {"k1": 2, "k2": 12}
    assert main(["inspect", str(out)]) == 0
    assert "--k1 2 --k2 12" in capsys.readouterr().out
    assert main(["verify", str(out), "--source", str(source), "--forward"]) == 0
    assert "with k1 = 2 and k2 = 12 applied" in capsys.readouterr().out


@pytest.mark.parametrize(("k1", "fewer"), [(2, True), (3, False), (4, False)])
def test_only_fewer_experts_are_faster(
    k1: int, fewer: bool, source: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from moeprune.cli.main import main

    out = tmp_path / "out"
    assert main(["export", str(source), "-o", str(out), "--k1", str(k1), "--k2", "6"]) == 0
    assert main(["inspect", str(out)]) == 0
    shown = capsys.readouterr().out
    assert shown.count("without them it routes as") == 2
    assert shown.count("and no faster") == (2 if fewer else 0)
