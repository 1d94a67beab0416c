"""calibrate from end to end: same bytes, nothing loaded before all else is right, honest counts."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors import safe_open
from tiny import FAMILIES

import moeprune
from moeprune.core.progress import Progress
from moeprune.core.stats import FIELDS, CalibrationStats
from moeprune.errors import (
    CheckpointError,
    DomainError,
    MismatchError,
    MoePruneError,
    OutputError,
    StatsError,
    UnknownFamilyError,
    UsageError,
)
from moeprune.stages import calibrate as stage
from moeprune.stages.merge import merge


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("texts")
    rows = [{"text": f"Text {i}: " + "wörter und mehr. " * (i % 4)} for i in range(11)]
    (folder / "a.jsonl").write_text("\n".join(map(json.dumps, rows)))
    (folder / "b.txt").write_text("A running text that is cut into pieces of equal length.\n" * 9)
    return {"prose": str(folder / "a.jsonl"), "数学": str(folder / "b.txt")}


def run(model: Path, texts: Any, output: Path | None = None, **options: Any) -> CalibrationStats:
    return moeprune.calibrate(
        model, domains=texts, output=output, **{"length": 40, "batch_tokens": 100, **options}
    )


@pytest.mark.parametrize("family", FAMILIES)
def test_stats_of_every_family_are_saved_and_read_back(
    family: str, tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    reports: list[Progress] = []
    made = run(tiny(family), texts, tmp_path / "s.safetensors", on_progress=reports.append)
    read = CalibrationStats.load(tmp_path / "s.safetensors")
    assert read.model == made.model
    assert [domain.name for domain in read.domains] == ["prose", "数学"]
    assert [domain.source for domain in read.domains] == ["a.jsonl", "b.txt"]
    for mine, theirs in zip(made.domains, read.domains, strict=True):
        assert set(mine.arrays) == set(theirs.arrays) == set(FIELDS)
        for name in FIELDS:
            assert (mine.arrays[name] == theirs.arrays[name]).all(), name
    assert read.provenance["dtype"] == "float32"
    assert (read.provenance["length"], read.provenance["samples"]) == (40, None)
    tokens = sum(domain.num_tokens() for domain in read.domains)
    assert reports[0] == Progress("calibrate", 0, tokens, "tokens")
    assert (reports[-1].done, reports[-1].total) == (tokens, tokens)
    assert re.fullmatch(r"\d+ unseen, \d+ tokens/expert", reports[-1].note)
    assert [report.done for report in reports] == sorted(report.done for report in reports)
    with safe_open(tmp_path / "s.safetensors", framework="numpy") as file:
        assert set(file.metadata()) == {"moeprune"}


def test_two_processes_write_the_same_bytes(
    tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    run(tiny("qwen3_moe"), texts, tmp_path / "here.safetensors")
    code = (
        "import sys, json, torch, moeprune; torch.set_num_threads(1)\n"
        "moeprune.calibrate(sys.argv[1], domains=json.loads(sys.argv[2]), output=sys.argv[3],"
        " length=40, batch_tokens=100)"
    )
    there = tmp_path / "there.safetensors"
    arguments = [str(tiny("qwen3_moe")), json.dumps(texts), str(there)]
    done = subprocess.run(
        [sys.executable, "-c", code, *arguments],
        env={**os.environ, "PYTHONHASHSEED": "77"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (done.stdout, done.stderr) == ("", "")
    assert there.read_bytes() == (tmp_path / "here.safetensors").read_bytes()


def test_batch_size_is_not_recorded_and_changes_no_count(tiny: Any, texts: dict[str, str]) -> None:
    small, large = (run(tiny("glm4_moe"), texts, batch_tokens=n) for n in (1, 5000))
    assert small.provenance == large.provenance
    for mine, theirs in zip(small.domains, large.domains, strict=True):
        assert mine.corpus_sha256 == theirs.corpus_sha256
        for name in FIELDS:
            np.testing.assert_allclose(mine.total(name), theirs.total(name), rtol=1e-5, atol=1e-7)
        assert (mine.arrays["count"] == theirs.arrays["count"]).all()


def test_a_recipe_is_the_same_as_its_domains(
    tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    lines = [f"[domains.{json.dumps(n)}]\nsource = {json.dumps(s)}" for n, s in texts.items()]
    recipe = tmp_path / "r.toml"
    recipe.write_text("\n".join(["schema = 'moeprune.recipe/1'", "samples = 3", *lines]), "utf-8")
    run(tiny("qwen3_moe"), None, tmp_path / "recipe", recipe=recipe)
    run(tiny("qwen3_moe"), texts, tmp_path / "domains", samples=3)
    assert (tmp_path / "recipe").read_bytes() == (tmp_path / "domains").read_bytes()


def test_duplicates_and_plain_chats_are_recorded(tiny: Any, tmp_path: Path) -> None:
    chat = {"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "a"}]}
    rows = [{"text": "one"}, chat, {"text": "one"}, {"text": "two"}, {"text": "one"}, chat]
    source = tmp_path / "d.jsonl"
    source.write_text("\n".join(map(json.dumps, rows)))
    on = run(tiny("qwen3_moe"), {"d": str(source)}, tmp_path / "on")
    off = run(tiny("qwen3_moe"), {"d": str(source)}, tmp_path / "off", chat_template=False)
    read = CalibrationStats.load(tmp_path / "off")
    assert (read.domain("d").documents, read.domain("d").duplicates) == (3, 3)
    assert read.provenance["chat_template"] == "off"
    assert "chat_template" not in on.provenance
    # one token a byte: "one" and "two" and "hi\n\na", or the template's words around "hi" and "a"
    assert off.domain("d").num_tokens() == 3 + 3 + 5 < on.domain("d").num_tokens()
    with pytest.raises(MismatchError, match="chat_template"):
        merge([tmp_path / "on", tmp_path / "off"], output=tmp_path / "both")
    shards = [tmp_path / "0", tmp_path / "1"]
    for index, file in enumerate(shards):
        run(tiny("qwen3_moe"), {"d": str(source)}, file, shard=(index, 2))
    assert merge(shards, output=tmp_path / "both").domain("d").duplicates == 3


def test_short_documents_are_a_warning_before_the_model_is_loaded(
    tiny: Any, texts: dict[str, str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from moeprune.observe import load

    def stop(*_: Any, **__: Any) -> Any:
        raise AssertionError("loaded")

    monkeypatch.setattr(load, "load_causal_lm", stop)
    for length, said in ((40, "cut to 40 tokens"), (2048, "cut to 512 tokens")):
        warnings: list[str] = []
        with pytest.raises(AssertionError, match="loaded"):
            run(tiny("qwen3_moe"), texts, length=length, on_warning=warnings.append)
        assert len(warnings) == 1 and said in warnings[0]  # the model has 512 positions


def test_shards_merge_into_the_whole(tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    whole = run(tiny("deepseek_v3"), texts, tmp_path / "whole")
    files = [tmp_path / f"{index}" for index in range(3)]
    for index, file in enumerate(files):
        run(tiny("deepseek_v3"), texts, file, shard=(index, 3))
    merged = merge(files[::-1], output=tmp_path / "merged")
    for mine, theirs in zip(whole.domains, merged.domains, strict=True):
        assert (mine.name, mine.shards, mine.documents) == (
            theirs.name,
            theirs.shards,
            theirs.documents,
        )
        for name in FIELDS:
            np.testing.assert_allclose(
                mine.arrays[name], theirs.arrays[name], rtol=1e-5, atol=1e-7, err_msg=name
            )
        for name in ("tokens", "count"):
            assert (mine.arrays[name] == theirs.arrays[name]).all()


def test_a_shard_may_hold_no_document_of_a_short_domain(tiny: Any, texts: dict[str, str]) -> None:
    stats = run(tiny("mixtral"), texts, shard=(14, 15), samples=12)
    assert [domain.num_tokens() for domain in stats.domains] == [0, 0]


def test_samples_and_seed_choose_documents(tiny: Any, texts: dict[str, str]) -> None:
    one, same, other = (
        run(tiny("mixtral"), texts, samples=4, seed=seed).domain("prose") for seed in (1, 1, 2)
    )
    assert one.documents == other.documents == 4
    assert one.corpus_sha256 == same.corpus_sha256 != other.corpus_sha256


def test_length_is_at_most_the_models_positions(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "long.txt").write_text("x" * 1500)
    stats = run(tiny("mixtral"), {"d": str(tmp_path / "long.txt")}, length=4096, batch_tokens=9)
    assert stats.provenance["length"] == 512
    assert stats.domains[0].documents == 3


def test_a_model_that_states_no_limit_of_positions_has_none(tiny: Any, tmp_path: Path) -> None:
    model = Path(shutil.copytree(tiny("mixtral"), tmp_path / "model"))
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps({**config, "max_position_embeddings": -1}))
    (tmp_path / "t.txt").write_text("x" * 99)
    stats = run(model, {"d": str(tmp_path / "t.txt")}, length=33)
    assert (stats.provenance["length"], stats.domains[0].documents) == (33, 3)


def test_the_builtin_domains_are_the_default(tiny: Any) -> None:
    stats = run(tiny("granitemoe"), None, samples=2, length=16)
    names = {"math", "code", "commonsense", "science", "instruction", "knowledge"}
    assert {domain.name for domain in stats.domains} == names
    assert {domain.source for domain in stats.domains} == {f"builtin:{name}" for name in names}


def test_broken_counts_are_never_saved(
    tiny: Any, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A model that routes each token to fewer experts than its config says."""
    from moeprune.observe import load

    genuine = load.load_causal_lm

    def lazy(*args: Any, **options: Any) -> Any:
        model = genuine(*args, **options)
        model.model.layers[2].mlp.gate.top_k = 2
        return model

    monkeypatch.setattr(load, "load_causal_lm", lazy)
    with pytest.raises(StatsError, match=r"prose, layer 2: \d+ routed tokens for \d+ tokens"):
        run(tiny("qwen3_moe"), texts, tmp_path / "s")
    assert list(tmp_path.iterdir()) == []


def test_a_corrupted_count_is_found(tiny: Any, texts: dict[str, str]) -> None:
    stats = run(tiny("qwen3_moe"), texts)
    arrays = {name: array.copy() for name, array in stats.domains[0].arrays.items()}
    arrays["count"][1, 2, 5] += 1
    broken = replace(stats, domains=(replace(stats.domains[0], arrays=arrays),))
    with pytest.raises(StatsError, match="prose, layer 3"):
        broken.check_counts()


def user_mistakes(folder: Path, model: Path, good: str) -> dict[str, tuple[Any, ...]]:
    """Name -> error class, part of the message, options."""
    (folder / "bad.jsonl").write_text('{"text": "a"}\nnot json\n')
    (folder / "empty.jsonl").write_text("\n")
    dense = folder / "dense"
    broken_tokenizer = Path(shutil.copytree(model, folder / "broken_tokenizer"))
    (broken_tokenizer / "tokenizer.json").write_text("{")
    no_tokenizer = Path(shutil.copytree(model, folder / "no_tokenizer"))
    for name in ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja"):
        (no_tokenizer / name).unlink(missing_ok=True)
    truncated = Path(shutil.copytree(model, folder / "truncated"))
    data = (truncated / "model.safetensors").read_bytes()
    (truncated / "model.safetensors").write_bytes(data[:-9])
    shutil.copytree(model, dense)
    config = json.loads((dense / "config.json").read_text())
    strange = Path(shutil.copytree(model, folder / "strange"))
    (strange / "config.json").write_text(json.dumps({**config, "dtype": "float99"}))
    (dense / "config.json").write_text(json.dumps({**config, "model_type": "unheard_of"}))
    d = {"d": good}
    table = folder / "table.parquet"
    table.write_bytes(b"PAR1")
    return {
        "mode": (UsageError, "decode", {"mode": "decoding"}),
        "no folder": (OutputError, "cannot write", {"output": folder / "none" / "s"}),
        "output is a folder": (OutputError, "it is a folder", {"output": folder}),
        "output is a text": (OutputError, "would be lost", {"output": good, "overwrite": True}),
        "output is the model": (
            OutputError,
            "would be lost",
            {"model": strange, "output": strange / "model.safetensors", "overwrite": True},
        ),
        "output is the config": (
            OutputError,
            "would be lost",
            {
                "model": strange,
                "output": strange / ".." / "strange" / "config.json",
                "overwrite": True,
            },
        ),
        "model missing": (CheckpointError, "", {"model": folder / "nothing"}),
        "truncated": (CheckpointError, "truncated", {"model": truncated}),
        "family": (UnknownFamilyError, "unheard_of", {"model": dense}),
        "config": (CheckpointError, "cannot read config.json", {"model": strange}),
        "tokenizer": (
            CheckpointError,
            "broken_tokenizer: the tokenizer cannot be read",
            {"model": broken_tokenizer},
        ),
        "no tokenizer": (CheckpointError, "tokenizer", {"model": no_tokenizer}),
        "empty domain": (DomainError, "holds no document", {"d": str(folder / "empty.jsonl")}),
        "bad line": (DomainError, "bad.jsonl, line 2", {"d": str(folder / "bad.jsonl")}),
        "no file": (DomainError, "does not exist", {"d": str(folder / "no.txt")}),
        "parquet": (DomainError, "x.parquet is no file", {"d": "x.parquet"}),
        "output is a table": (
            OutputError,
            "would be lost",
            {"output": table, "d": f"{table}:text", "overwrite": True},
        ),
        "hub": (UsageError, "--samples N", {"d": "hf:a/b:train:text"}),
        "recipe": (DomainError, "no.toml does not exist", {"recipe": "no.toml", "domains": None}),
        "recipe and domains": (UsageError, "give one of them", {"recipe": "six-domains.toml"}),
        "builtin": (UsageError, "Did you mean 'math'", {"d": "builtin:mat"}),
        "no source": (UsageError, "is not NAME=SOURCE", {"domains": ["math"]}),
        "twice": (DomainError, "given twice", {"domains": [f"a={good}", f"a={good}"]}),
        "slash": (DomainError, "cannot be called 'a/b'", {"domains": {"a/b": good}}),
        "length": (UsageError, "at least 1", {"length": 0}),
        "samples": (UsageError, "at least 1", {"samples": 0}),
        "seed": (UsageError, "--seed -1 is out of range", {"seed": -1}),
        "batch": (UsageError, "a batch of 0 tokens", {"batch_tokens": 0}),
        "shard": (UsageError, "shard 3/3 does not exist", {"shard": (3, 3)}),
        "dtype": (UsageError, "no dtype named 'int3'", {"dtype": "int3"}),
        "no numbers": (UsageError, "device 'meta'", {"device": "meta"}),
        "device": (UsageError, "device 'abacus'", {"device": "abacus"}),
        "revision": (UsageError, "is a local folder", {"revision": "main"}),
        "loss": (UsageError, "--loss some is neither", {"loss_aware": True, "loss": "some"}),
        "loss alone": (UsageError, "Give --loss-aware too", {"loss": "all"}),
        "temperature alone": (
            UsageError,
            "--loss-temperature 3 is of the loss",
            {"loss_temperature": 3.0},
        ),
        "no temperature": (
            UsageError,
            "--loss-temperature 0.0 is not",
            {"loss_aware": True, "loss_temperature": 0.0},
        ),
        "loss of prompts": (
            UsageError,
            "--loss all takes the loss of prompts too",
            {"loss_aware": True, "loss": "all", "mode": "decode"},
        ),
        "loss and spread experts": (
            UsageError,
            "--expert-parallel gives each process a part",
            {"loss_aware": True, "expert_parallel": 2},
        ),
        "good": (None, "", d),
    }


def test_mistakes_are_one_line_before_the_model_is_loaded(
    tiny: Any, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moeprune.observe import load

    def loaded(*_: Any, **__: Any) -> Any:
        raise AssertionError("the model was loaded before everything was checked")

    monkeypatch.setattr(load, "load_causal_lm", loaded)
    (tmp_path / "out").mkdir()
    cases = user_mistakes(tmp_path, tiny("qwen3_moe"), texts["prose"])
    for case, (error, message, options) in cases.items():
        options = dict(options)
        if "d" in options:
            options["domains"] = {"d": options.pop("d")}
        call = {
            "model": tiny("qwen3_moe"),
            "domains": {"d": texts["prose"]},
            "output": tmp_path / "out" / "s",
            **options,
        }
        model = call.pop("model")
        if error is None:
            with pytest.raises(AssertionError, match="was loaded"):
                stage.calibrate(model, **call)
            continue
        with pytest.raises(MoePruneError) as caught:
            stage.calibrate(model, **call)
        assert type(caught.value) is error, (case, caught.value)
        assert message in str(caught.value), case
        assert "\n" not in str(caught.value), case
        assert caught.value.exit_code == 2
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.parametrize("file", ["model.safetensors", "config.json"])
def test_a_model_that_changes_while_it_loads_is_not_measured(
    file: str, tiny: Any, texts: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from moeprune.observe import load

    model = Path(shutil.copytree(tiny("qwen3_moe"), tmp_path / "model"))
    plainly = load.load_causal_lm

    def replacing(*args: Any, **options: Any) -> Any:
        data = (model / file).read_bytes()
        if file == "config.json":
            changed = data.replace(b'"rms_norm_eps": 1e-06', b'"rms_norm_eps": 1e-05')
        else:
            header = int.from_bytes(data[:8], "little")
            gate = json.loads(data[8 : 8 + header])["model.layers.0.mlp.gate.weight"]
            at = 8 + header + gate["data_offsets"][0]
            changed = data[:at] + bytes(4) + data[at + 4 :]
        assert changed != data
        (model / "new").write_bytes(changed)
        (model / "new").replace(model / file)
        return plainly(*args, **options)

    monkeypatch.setattr(load, "load_causal_lm", replacing)
    with pytest.raises(CheckpointError, match="was changed while it was being loaded"):
        run(model, {"d": texts["prose"]}, output=tmp_path / "s")
    assert not (tmp_path / "s").exists()


def test_existing_stats_are_replaced_only_when_asked(
    tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    out = tmp_path / "stats.safetensors"
    domains = {"d": texts["prose"]}
    moeprune.calibrate(tiny("olmoe"), output=out, domains=domains)
    before = out.read_bytes()
    with pytest.raises(OutputError, match="--overwrite"):
        moeprune.calibrate(tiny("olmoe"), output=out, domains=domains, samples=1)
    assert out.read_bytes() == before
    moeprune.calibrate(tiny("olmoe"), output=out, domains=domains, samples=1, overwrite=True)
    assert out.read_bytes() != before
