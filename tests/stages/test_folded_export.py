"""export --fold-gain: which values change and to what, what verify says, what is refused."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from conftest import Tiny
from folding import LAST_MAP, made_up_stats, record_of, same, tensors_of
from mtp import mtp_checkpoint
from plans import plan_keeping
from safetensors.torch import load_file, save_file
from tiny import tiny_checkpoint
from uneven import uneven_plan

import moeprune
from moeprune.cli.main import main
from moeprune.core.gains import layer_gains
from moeprune.errors import CheckpointError, MismatchError
from moeprune.stages.eval_model import open_asked
from moeprune.stages.eval_variants import Variant
from moeprune.stages.identify import open_model
from moeprune.stages.preparing import prepare

Copy = Callable[..., Path]


def cast(source: Path, to: Path, dtype: torch.dtype) -> Path:
    shutil.copytree(source, to)
    tensors = {
        name: tensor.to(dtype) for name, tensor in load_file(to / "model.safetensors").items()
    }
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    config = json.loads((to / "config.json").read_text())
    config["dtype"] = str(dtype).removeprefix("torch.")
    (to / "config.json").write_text(json.dumps(config))
    return to


@pytest.mark.parametrize(
    ("family", "dtype"),
    [
        ("qwen3_moe", torch.bfloat16),
        ("qwen3_moe", torch.float16),
        ("qwen3_moe", torch.float32),
        ("gpt_oss", torch.bfloat16),
        ("granitemoe", torch.bfloat16),
        ("mixtral", torch.float32),
    ],
)
def test_only_the_last_maps_are_multiplied(
    family: str, dtype: torch.dtype, tiny: Tiny, tmp_path: Path
) -> None:
    source = cast(tiny(family), tmp_path / "source", dtype)
    stats = made_up_stats(source)
    k1, k2 = (1, 4) if family == "mixtral" else (2, 6)
    out = moeprune.export(source, output=tmp_path / "out", k1=k1, k2=k2, fold_gain=stats)
    record = record_of(out)["folded_gain"]
    gains = record["gains"]
    assert gains == pytest.approx(layer_gains(stats, k1, k2).tolist(), rel=1e-7)
    assert all(gain == torch.tensor(gain).item() for gain in gains)  # float32 numbers
    layers = list(open_model(source).layout.layer_ids)
    old, new = tensors_of(source), tensors_of(out)
    assert old.keys() == new.keys()
    changed = 0
    for name, tensor in old.items():
        if "expert" in name or "block_sparse_moe" in name:
            last = re.search(r"\.(down_proj|w2|output_linear)", name) is not None
        else:
            last = False
        if not last:
            assert same(tensor, new[name]), name
            continue
        gain = gains[layers.index(int(re.findall(r"layers\.(\d+)\.", name)[0]))]
        exact = tensor.double() * gain
        # Within half a unit in the last place of the exact product.
        unit = {torch.bfloat16: 2.0**-8, torch.float16: 2.0**-11, torch.float32: 2.0**-24}[dtype]
        assert new[name].dtype == dtype
        assert ((new[name].double() - exact).abs() <= exact.abs() * unit + 2.0**-25).all(), name
        assert not same(tensor, new[name])
        changed += 1
    assert changed
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()
    assert report.multiplied == report.to_json()["multiplied"] == changed
    assert f"{changed} equal to them times the gain" in report.to_text()
    assert f"with k1 = {k1} and each layer's gain applied" in report.to_text()


@pytest.mark.parametrize("how", ["uniform", "per-layer", "padded"])
def test_with_a_plan(how: str, tiny: Tiny, tmp_path: Path) -> None:
    """Kept experts alone, the layer's own gain; the live policy over the mask says the same."""
    source = tiny("glm4_moe" if how == "padded" else "qwen3_moe")
    plan = uneven_plan(source)
    if how == "uniform":
        plan = plan_keeping(source, [tuple(range(3, 12))] * len(plan.keep))
    out = moeprune.export(
        source,
        plan=plan,
        output=tmp_path / "out",
        k1=2,
        k2=5,
        fold_gain=made_up_stats(source),
        per_layer=how == "per-layer",
        pad=how == "padded",
    )
    config = json.loads((out / "config.json").read_text())
    assert config["num_experts_per_tok"] == 2
    block = config.get("moeprune", {})
    assert set(block) == ({"format", "experts_per_layer"} if how == "per-layer" else set())
    record = record_of(out)
    assert "stats by rank do not say which ranks the removed experts held" in " ".join(
        record["warnings"]
    )
    assert len(record["folded_gain"]["gains"]) == len(plan.keep)
    card = (out / "README.md").read_text("utf-8")
    notes = [line.removeprefix("Note: ") for line in card.splitlines() if "Note: " in line]
    assert notes[-len(record["warnings"]) + 1 :] == record["warnings"][1:]
    assert "a constant (" in card and not any("--fold-gain" in note for note in notes)
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()
    if how == "padded":
        biased = "chooses by biased scores"
        assert biased in " ".join(record["warnings"])


def test_all_ranks_that_a_plan_leaves_are_all(tiny: Tiny, tmp_path: Path) -> None:
    """k₂ beyond the experts that stay is E: the mass of all ranks, not of so many of the model."""
    source = tiny("qwen3_moe")
    stats = made_up_stats(source)
    plan = plan_keeping(source, [tuple(range(8))] * 3)
    outs = [
        moeprune.export(source, plan=plan, output=tmp_path / str(k2), k1=2, k2=k2, fold_gain=stats)
        for k2 in (8, 11, "E")
    ]
    gains = [record_of(out)["folded_gain"]["gains"] for out in outs]
    assert gains[0] == gains[1] == gains[2] == pytest.approx(layer_gains(stats, 2, 12).tolist())


@pytest.mark.parametrize("mtp", ["prune", "drop", "keep"])
@pytest.mark.parametrize("family", ["qwen3_5_moe", "mellum"])
def test_next_token_layers_follow_the_last_layer(family: str, mtp: str, tmp_path: Path) -> None:
    source = mtp_checkpoint(family, tmp_path / "source")
    out = moeprune.export(
        source,
        output=tmp_path / "out",
        k1=2,
        k2=6,
        fold_gain=made_up_stats(source),
        mtp=mtp,
    )
    gain = record_of(out)["folded_gain"]["gains"][-1]
    old, new = tensors_of(source), tensors_of(out)
    names = [name for name in old if name.startswith("mtp.") and LAST_MAP.search(name)]
    assert names
    for name in names:
        assert (name in new) == (mtp != "drop")
        if name in new:
            assert torch.equal(new[name], old[name] * torch.tensor(gain))
    report = moeprune.verify(out, source=source)
    assert report.ok, report.to_text()


def test_routers_that_do_not_renormalise(tiny: Tiny, tmp_path: Path) -> None:
    """k₂ = E: k₁ alone changes, and no weight; another k₂ divides by its mean mass."""
    source = tiny("olmoe")
    stats = made_up_stats(source)
    out = moeprune.export(source, output=tmp_path / "e", k1=2, k2="E", fold_gain=stats)
    old, new = tensors_of(source), tensors_of(out)
    assert all(same(tensor, new[name]) for name, tensor in old.items())
    assert "warnings" not in record_of(out)
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()
    out = moeprune.export(source, output=tmp_path / "6", k1=2, k2=6, fold_gain=stats)
    gains = torch.tensor(record_of(out)["folded_gain"]["gains"])
    mass = torch.from_numpy(layer_gains(stats, 6, 12))
    torch.testing.assert_close(gains.double(), 1 / mass, rtol=1e-6, atol=0)
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()


def test_same_bytes_and_a_preview(tiny: Tiny, tmp_path: Path) -> None:
    source = tiny("qwen3_moe")
    stats = tmp_path / "stats.safetensors"
    made_up_stats(source).save(stats)
    options: Any = {"k1": 2, "k2": 5, "fold_gain": stats}
    outs = [moeprune.export(source, output=tmp_path / name, **options) for name in ("a", "b")]
    files = sorted(path.name for path in outs[0].iterdir())
    assert all((outs[0] / name).read_bytes() == (outs[1] / name).read_bytes() for name in files)
    assert len(record_of(outs[0])["folded_gain"]["stats"]) == 64
    prepared = prepare(source, output=tmp_path / "c", **options)
    scaled = [edit["source"] for edit in prepared.to_json()["tensors"] if edit["action"] == "scale"]
    assert scaled and all(LAST_MAP.search(name) for name in scaled)
    assert prepared.counts()["scale"] == len(scaled) == 3 * 12
    assert prepared.to_json()["config"] == {"num_experts_per_tok": 2}
    card = (outs[0] / "README.md").read_text("utf-8")
    assert "2 experts run per token in place of 3" in card
    assert "by a constant (" in card and "trust_remote_code=True)" not in card
    assert "but for what experts' last linear maps are multiplied by" in card
    # Once, and not as a note on the same again.
    assert len(re.findall("a constant", card)) == 1 and "Note: " not in card
    assert "measure what it costs" in card and "--fold-gain: " in record_of(outs[0])["warnings"][0]


@pytest.fixture(scope="module")
def folded(tiny: Tiny, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    source = tiny("qwen3_moe")
    out = tmp_path_factory.mktemp("folded") / "out"
    return source, moeprune.export(source, output=out, k1=2, k2=5, fold_gain=made_up_stats(source))


@pytest.mark.parametrize("k2", ["E", 5])
def test_inspect_says_so(
    k2: int | str, tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """olmoe does not renormalise: with k2 = E no weight changes."""
    source = tiny("olmoe")
    out = moeprune.export(
        source, output=tmp_path / "out", k1=2, k2=k2, fold_gain=made_up_stats(source)
    )
    assert moeprune.inspect(source).folded_gain is None
    found, record = moeprune.inspect(out), record_of(out)["folded_gain"]
    assert found.policy is None and found.top_k == 2
    assert json.loads(json.dumps(found.to_json()))["folded_gain"] == record
    gains = record["gains"]
    assert main(["inspect", str(out)]) == 0 and main(["inspect", str(source)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if "--fold-gain" in line]
    asked = f"exported with --k1 2 --k2 {12 if k2 == 'E' else k2} --fold-gain: config.json states "
    given = f"what experts give is multiplied by {min(gains):.3f} to {max(gains):.3f}"
    done = "no weight was changed" if k2 == "E" else f"{given}, a constant a layer"
    assert lines == [f"{asked}k1, {done}"]


@pytest.mark.parametrize(
    ("record", "match"),
    [
        ('{"schema": "moeprune.export/1", "folded_gain": {"k1": 2}}', "folded_gain is malformed"),
        ('{"schema": "moeprune.export/1", "folded_gain": 3}', "folded_gain is malformed"),
        ("{", "not one JSON object"),
        ('{"schema": "other", "folded_gain": 3}', None),
        ("[]", None),
    ],
)
def test_inspect_of_a_damaged_record(
    record: str, match: str | None, folded: tuple[Path, Path], tmp_path: Path
) -> None:
    out = shutil.copytree(folded[1], tmp_path / "out")
    (out / "moeprune.json").write_text(record)
    if match is None:  # it is nobody's business
        assert moeprune.inspect(out).folded_gain is None
        return
    with pytest.raises(CheckpointError, match=match) as raised:
        moeprune.inspect(out)
    assert "\n" not in str(raised.value) and "moeprune.json" in str(raised.value)


def spoil(out: Path, to: Path, change: Callable[[dict[str, torch.Tensor]], None]) -> Path:
    shutil.copytree(out, to)
    tensors = load_file(to / "model.safetensors")
    change(tensors)
    save_file(tensors, to / "model.safetensors", metadata={"format": "pt"})
    return to


def test_an_evaluation_says_what_is_in_the_weights(folded: tuple[Path, Path]) -> None:
    _, out = folded
    body = Variant(name="folded").header(open_asked(out))
    assert body == {"exported": "uniform", "folded_gain": {"k1": 2, "k2": 5}}
    assert moeprune.inspect(out).top_k == 2


ONE = "model.layers.2.mlp.experts.7.down_proj.weight"


@pytest.mark.parametrize("what", ["source's", "ulp", "twice", "up"])
def test_verify_finds_wrong_values(what: str, folded: tuple[Path, Path], tmp_path: Path) -> None:
    source, out = folded
    original = tensors_of(source)

    def change(tensors: dict[str, torch.Tensor]) -> None:
        if what == "source's":
            tensors[ONE] = original[ONE]
        elif what == "ulp":
            tensors[ONE].view(torch.int32)[3, 5] += 1
        elif what == "twice":
            tensors[ONE] *= record_of(out)["folded_gain"]["gains"][1]
        else:
            name = ONE.replace("down_proj", "up_proj")
            tensors[name] *= record_of(out)["folded_gain"]["gains"][1]

    report = moeprune.verify(spoil(out, tmp_path / "out", change), source=source)
    assert len(report.problems) == 1
    wanted = "bytes differ" if what == "up" else "values are not the source's times 0."
    assert wanted in report.problems[0]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"gains": [0.5, 0.5, 0.5]}, "values are not the source's times 0.5"),
        ({"k1": 3}, "config.json num_experts_per_tok is not 3"),
        ({"gains": [0.5]}, "1 factors, the source 3 MoE layers"),
        ({"gains": [0.1, 0.5, 0.5]}, "folded_gain is malformed"),  # no float32 number
        ({"gains": []}, "folded_gain is malformed"),
        ({"gains": [0.5, -0.5, 0.5]}, "folded_gain is malformed"),
        ({"gains": 0.5}, "folded_gain is malformed"),
        ({"k1": "2"}, "folded_gain is malformed"),
    ],
)
def test_verify_reads_the_record(
    change: dict[str, Any],
    words: str,
    folded: tuple[Path, Path],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    source, out = folded
    shutil.copytree(out, tmp_path / "out")
    body = record_of(out)
    body["folded_gain"] |= change
    (tmp_path / "out" / "moeprune.json").write_text(json.dumps(body))
    assert main(["verify", str(tmp_path / "out"), "--source", str(source)]) in (1, 2)
    said = capsys.readouterr()
    assert words in said.out + said.err and "Traceback" not in said.err


def test_another_top_k_is_found(folded: tuple[Path, Path], tmp_path: Path) -> None:
    source, out = folded
    shutil.copytree(out, tmp_path / "out")
    config = json.loads((out / "config.json").read_text())
    config["num_experts_per_tok"] = 3
    (tmp_path / "out" / "config.json").write_text(json.dumps(config))
    report = moeprune.verify(tmp_path / "out", source=source)
    assert report.problems == (
        "config.json num_experts_per_tok is not 2, the number of experts that run",
    )


def test_every_spelling_and_a_missing_one(tmp_path: Path) -> None:
    source = tiny_checkpoint("qwen3_moe", tmp_path / "source")
    config = json.loads((source / "config.json").read_text())
    (source / "config.json").write_text(json.dumps({**config, "experts_per_token": 3}))
    stats = made_up_stats(source)
    out = moeprune.export(source, output=tmp_path / "both", k1=2, k2=5, fold_gain=stats)
    made = json.loads((out / "config.json").read_text())
    assert (made["num_experts_per_tok"], made["experts_per_token"]) == (2, 2)
    source = tiny_checkpoint("gpt_oss", tmp_path / "oss", num_experts_per_tok=4)
    config = json.loads((source / "config.json").read_text())
    for key in ("num_experts_per_tok", "experts_per_token"):
        config.pop(key, None)
    (source / "config.json").write_text(json.dumps(config))  # the default of the family is 4
    out = moeprune.export(
        source, output=tmp_path / "none", k1=2, k2=5, fold_gain=made_up_stats(source)
    )
    assert json.loads((out / "config.json").read_text())["num_experts_per_tok"] == 2
    report = moeprune.verify(out, source=source, forward=True)
    assert report.ok, report.to_text()


@pytest.mark.parametrize(
    ("family", "options", "words"),
    [
        ("qwen3_moe", [], "--fold-gain writes the gain of --k1 and --k2"),
        ("qwen3_moe", ["--k1", "2"], "give both"),
        ("qwen3_moe", ["--k1", "3", "--k2", "3"], "is how qwen3_moe routes by itself"),
        ("qwen3_moe", ["--k1", "13", "--k2", "E"], "--k1 13 is too many"),
        ("olmoe", ["--k1", "3", "--k2", "E"], "is how olmoe routes by itself"),
        ("llama4_text", ["--k1", "2", "--k2", "2"], "do not fit family llama4_text"),
    ],
)
def test_refused_in_one_line(
    family: str,
    options: list[str],
    words: str,
    tiny: Tiny,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    made_up_stats(tiny(family)).save(tmp_path / "s")
    out = tmp_path / "out"
    command = ["export", str(tiny(family)), "-o", str(out), "--fold-gain", str(tmp_path / "s")]
    capsys.readouterr()  # what making the model says
    assert main([*command, *options]) == 2
    said = capsys.readouterr().err
    assert words in said and said.count("\n") == 1 and not out.exists()


def test_stats_of_another_model(
    tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    stats = made_up_stats(tiny("qwen3_moe"))
    other = replace(stats, model=replace(stats.model, fingerprint="ab" * 32))
    other.save(tmp_path / "s")
    command = ["export", str(tiny("qwen3_moe")), "-o", str(tmp_path / "out"), "--k1", "2"]
    command += ["--k2", "5", "--fold-gain"]
    capsys.readouterr()
    assert main([*command, str(tmp_path / "s")]) == 2
    said = capsys.readouterr().err
    assert "abababababab" in said and stats.model.fingerprint[:12] in said
    assert main([*command, str(tmp_path / "none")]) == 2
    assert "does not exist" in capsys.readouterr().err


def test_stats_of_the_source_of_a_folded_model(folded: tuple[Path, Path], tmp_path: Path) -> None:
    """Its routers and headers are those of its source; how many experts run is not."""
    source, out = folded
    stats = made_up_stats(source)
    with pytest.raises(MismatchError, match="runs 3 experts per token, out runs 2"):
        moeprune.export(out, output=tmp_path / "x", k1=1, k2=3, fold_gain=stats)
    again = moeprune.export(
        out, output=tmp_path / "again", k1=1, k2=3, fold_gain=made_up_stats(out)
    )
    assert moeprune.verify(again, source=out).ok
    assert not moeprune.verify(again, source=source).ok


def test_command(tiny: Tiny, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    made_up_stats(tiny("qwen3_moe")).save(tmp_path / "s")
    command = ["export", str(tiny("qwen3_moe")), "-o", str(tmp_path / "out"), "--k1", "2"]
    command += ["--k2", "5", "--fold-gain", str(tmp_path / "s")]
    assert main([*command, "--dry-run"]) == 0
    said = capsys.readouterr().out
    assert "36 multiplied" in said and "config.json: num_experts_per_tok = 2" in said
    assert main([*command, "--json"]) == 0
    made = json.loads(capsys.readouterr().out)
    assert made["folded_gain"] == record_of(tmp_path / "out")["folded_gain"]
    assert "a constant a layer" in made["warnings"][0] and "policy" not in made
