"""eval --agreement-with: which experts two models select, against a slow reference; ids by plan."""

from __future__ import annotations

import gc
import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest
from plans import plan_keeping
from questions import choosing, rows, writing
from safetensors.torch import load_file, save_file
from slow_selection import chosen, compared, student, windows
from tiny import add_tokenizer, tiny_checkpoint

import moeprune
from moeprune.cli.agreement_text import percent
from moeprune.cli.main import main
from moeprune.core.run import Run
from moeprune.errors import (
    CheckpointError,
    MismatchError,
    MoePruneError,
    RunError,
    StoppedError,
    UnsupportedModelError,
    UsageError,
)

TEXTS = [f"{n} und {n * n}, größer als {n + 3}. " * (2 + n % 3) for n in range(5)]


def rounded(model: Path, copy: Path, *, step: float = 0.1) -> Path:
    """A copy whose experts are multiples of ``step``: a quantisation that anyone would do."""
    shutil.copytree(model, copy)
    for file in copy.glob("*.safetensors"):
        weights = load_file(file)
        for name, weight in weights.items():
            if ".experts." in name and weight.is_floating_point():
                weights[name] = (weight / step).round() * step
        save_file(weights, file, metadata={"format": "pt"})
    return copy


@pytest.fixture(scope="module")
def texts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("texts")
    return {
        "wörter": str(rows(folder / "a.jsonl", [{"text": text} for text in TEXTS[:3]])),
        "b": str(rows(folder / "b.jsonl", [{"text": text} for text in TEXTS[3:]])),
    }


@pytest.fixture(scope="module")
def pair(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A model, and the same with rounded experts."""
    model = tiny("qwen3_moe")
    return model, rounded(model, tmp_path_factory.mktemp("rounded") / "model")


def ask(model: Path, other: Path, texts: dict[str, str], **words: Any) -> tuple[Run, ...]:
    how = {"chunk": 40, "device": "cpu", "dtype": "float32", "held_out": texts, **words}
    return moeprune.eval(model, agreement_with=other, **how)


def agreement(model: Path, other: Path, texts: dict[str, str], **words: Any) -> dict[str, Any]:
    (run,) = ask(model, other, texts, **words)
    return dict(run.agreement)


def whole(found: dict[str, Any]) -> bool:
    """Whether every token has the same experts in the same order."""
    parts = [found, *found["layers"], *found["domains"].values()]
    return all({*part["ranks"], part["same_set"], part["overlap"]} == {1.0} for part in parts)


@pytest.mark.parametrize("family", ["qwen3_moe", "deepseek_v3", "gpt_oss", "mixtral", "glm4_moe"])
def test_as_a_slow_reference_counts(
    family: str, tiny: Any, texts: dict[str, str], tmp_path: Path
) -> None:
    """Softmax; sigmoid, bias and groups; top k, then softmax: each rank, set, layer and domain."""
    from transformers import AutoTokenizer

    model = tiny(family)
    other = rounded(model, tmp_path / "other", step=0.2)
    found = agreement(model, other, texts)
    tokenizer = AutoTokenizer.from_pretrained(model)
    read = [windows(tokenizer, text, chunk=40) for text in TEXTS]
    parts = [part for each in read for part in each]
    ids, firsts = [ids for ids, _ in parts], [first for _, first in parts]
    assert any(firsts)
    ones, others = chosen(model, ids), chosen(other, ids)
    wanted = compared(ones, others, firsts)
    for name in ("ranks", "same_set", "overlap"):
        assert found[name] == pytest.approx(wanted[name], abs=1e-12), name
        for layer, slow in zip(found["layers"], wanted["layers"], strict=True):
            assert layer[name] == pytest.approx(slow[name], abs=1e-12), name
    assert 0.3 < found["same_set"] < found["ranks"][0] < 1
    split = sum(map(len, read[:3]))
    for name, span in (("wörter", slice(split)), ("b", slice(split, None))):
        slow = compared(ones[span], others[span], firsts[span])
        own = found["domains"][name]
        assert own["ranks"] == pytest.approx(slow["ranks"], abs=1e-12)
        assert own["tokens"] == sum(map(len, ids[span])) - sum(firsts[span])
    assert found["documents"] == 5
    # Every token of a text counts once, however its windows overlap.
    assert found["tokens"] == sum(len(text.encode()) for text in TEXTS)
    assert found["k"] == [len(wanted["ranks"])] * 2
    assert found["with"]["name"] == "other"


@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8", "nf4"])
def test_quantised_exports(scheme: str, tiny: Any, texts: dict[str, str], tmp_path: Path) -> None:
    """As transformers loads them, whole and pruned, against the same reference."""
    from transformers import AutoTokenizer

    model = tiny("qwen3_moe")
    moeprune.export(model, quantize=scheme, output=tmp_path / "whole")
    tokenizer = AutoTokenizer.from_pretrained(model)
    parts = [part for text in TEXTS for part in windows(tokenizer, text, chunk=40)]
    ids, firsts = [ids for ids, _ in parts], [first for _, first in parts]
    wanted = compared(chosen(tmp_path / "whole", ids), chosen(model, ids), firsts)
    found = agreement(tmp_path / "whole", model, texts)
    assert found["ranks"] == wanted["ranks"] and found["same_set"] == wanted["same_set"]
    assert found["layers"][0]["same_set"] == 1.0 and not whole(found)
    plan = plan_keeping(model, KEEP)
    moeprune.export(model, plan=plan, quantize=scheme, output=tmp_path / "pruned")
    again = agreement(tmp_path / "pruned", model, texts, name="x")
    masked = agreement(
        tmp_path / "whole", model, texts, plan=plan_keeping(tmp_path / "whole", KEEP)
    )
    assert again == masked


def test_intervals_are_over_documents(pair: tuple[Path, Path], tmp_path: Path) -> None:
    """Of documents of one length: Student's interval of their shares."""
    model, other = pair
    each = [f"{n:03d} plus {n * 7:03d} ist viel." * 3 for n in range(6)]
    assert len({len(text) for text in each}) == 1
    whole_text = {"t": str(rows(tmp_path / "all.jsonl", [{"text": text} for text in each]))}
    found = agreement(model, other, whole_text)
    alone = [
        agreement(model, other, {"t": str(rows(tmp_path / f"{n}.jsonl", [{"text": text}]))})
        for n, text in enumerate(each)
    ]
    assert alone[0]["intervals"] == {"ranks": [None] * 3, "same_set": None, "overlap": None}
    for name in ("same_set", "overlap"):
        low, high = student([one[name] for one in alone])
        assert found["intervals"][name] == pytest.approx([low, min(1.0, high)])
        assert low < found[name] < high


def test_the_model_itself_and_batches(
    pair: tuple[Path, Path], texts: dict[str, str], tmp_path: Path
) -> None:
    model, other = pair
    assert whole(agreement(model, model, texts))
    one = agreement(model, other, texts, batch_size=1)
    assert one == agreement(model, other, texts, batch_size=7)
    assert not whole(one)
    # Turned round, all that differs is whose the name is.
    back = agreement(other, model, texts, batch_size=3)
    assert {**back, "with": one["with"]} == one
    # Text by text, too: what stands beside a text changes nothing.
    alone = agreement(model, other, {"b": texts["b"]})
    assert alone["ranks"] == one["domains"]["b"]["ranks"]


KEEP = [[1, 2, 4, 5, 7, 8, 10, 11], [0, 3, 4, 5, 6, 7, 9, 11], [2, 3, 5, 6, 7, 8, 9, 10]]
UNEVEN = [[1, 2, 4, 5, 7, 8, 10, 11], [0, 3, 4, 11], [2, 3, 5, 6, 7, 8, 9]]


def test_ids_of_exports_are_the_sources(
    tiny: Any, pair: tuple[Path, Path], texts: dict[str, str], tmp_path: Path
) -> None:
    """A pruned export selects what the masked source does; by plain numbers it would not."""
    model, _ = pair
    plan = plan_keeping(model, KEEP)
    out = tmp_path / "out"
    moeprune.export(model, plan=plan, output=out)
    assert whole(agreement(model, out, texts, plan=plan))
    assert whole(agreement(out, out, texts))
    found = agreement(out, model, texts)
    assert not whole(found)
    # In the first layer, which reads the same, an expert is as in the source or lower in rank.
    masked = agreement(model, model, texts, plan=plan)
    assert masked == {**found, "with": masked["with"]}
    uneven = plan_keeping(model, UNEVEN)
    moeprune.export(model, plan=uneven, output=tmp_path / "layers", per_layer=True)
    assert whole(agreement(model, tmp_path / "layers", texts, plan=uneven))
    assert whole(agreement(tmp_path / "layers", model, texts)) is False
    two = tmp_path / "two"
    moeprune.export(model, plan=plan, output=two, k1=2, k2=3)
    found = agreement(two, out, texts)
    assert found["k"] == [2, 3] and len(found["ranks"]) == 2
    assert found["layers"][0]["ranks"] == [1.0, 1.0] and not whole(found)
    policy = agreement(model, model, texts, plan=plan, k1=2, k2=3)
    found = agreement(two, model, texts)
    assert {**policy, "with": found["with"]} == found
    # An export of an export: each of the two can be the other model, in the first one's numbers.
    moeprune.export(model, k1=2, k2=3, output=tmp_path / "few")
    moeprune.export(out, plan=plan_keeping(out, [[0, 2, 3, 5, 6]] * 3), output=tmp_path / "again")
    assert whole(
        agreement(out, tmp_path / "again", texts, plan=plan_keeping(out, [[0, 2, 3, 5, 6]] * 3))
    )
    assert agreement(tmp_path / "few", model, texts)["layers"][0]["ranks"] == [1.0, 1.0]
    # Two exports of one model, of which only some experts are the same.
    third = plan_keeping(model, [[0, 1, 2, 3, 4, 5, 6, 7]] * 3)
    moeprune.export(model, plan=third, output=tmp_path / "third")
    assert agreement(tmp_path / "third", out, texts)["overlap"] < 0.9


def test_experts_that_fill_up_are_nobodys(texts: dict[str, str], tmp_path: Path) -> None:
    flat = tiny_checkpoint("deepseek_v3", tmp_path / "flat", n_group=1, topk_group=1)
    plan = plan_keeping(flat, [[1, 2, 4, 5, 7, 8, 10, 11], [0, 3, 4, 11]])
    moeprune.export(flat, plan=plan, output=tmp_path / "padded", pad=True)
    assert whole(agreement(flat, tmp_path / "padded", texts, plan=plan))
    model = tiny_checkpoint("deepseek_v3", tmp_path / "x", seed=1, n_group=1, topk_group=1)
    with pytest.raises(MismatchError, match="was pruned from flat"):
        agreement(model, tmp_path / "padded", texts)


def test_several_variants_of_one_load(
    pair: tuple[Path, Path], texts: dict[str, str], tmp_path: Path, capsys: Any
) -> None:
    model, other = pair
    plan = plan_keeping(model, KEEP)
    variants = {"native": None, "pruned": plan, "k1=2": {"k1": 2, "k2": 3}}
    runs = ask(model, other, texts, variants=variants, output=tmp_path / "runs")
    assert runs[0].agreement == agreement(model, other, texts)
    assert runs[1].agreement == agreement(model, other, texts, plan=plan)
    assert runs[2].agreement == agreement(model, other, texts, k1=2, k2=3)
    again = [Run.load(tmp_path / "runs" / run.name) for run in runs]
    assert [run.agreement for run in again] == [run.agreement for run in runs]
    assert main(["compare", str(tmp_path / "runs"), "--json"]) == 0
    said = json.loads(capsys.readouterr().out)["selection_agreement"]
    assert said == {run.name: run.agreement for run in runs}
    assert main(["compare", str(tmp_path / "runs")]) == 0
    lines = capsys.readouterr().out.splitlines()
    (head,) = [line for line in lines if line.startswith("experts selected as in")]
    tokens = runs[0].agreement["tokens"]
    assert head == f"experts selected as in model: {tokens} tokens of 5 texts, 3 layers"
    (third,) = [line.split() for line in lines if line.startswith("rank 3")]
    shares = [f"{run.agreement['ranks'][2]:.2%}" for run in runs[:2]]
    assert third == ["rank", "3", shares[0], "-", shares[1]]  # names are ordered


def test_one_model_in_memory_at_a_time(pair: tuple[Path, Path], texts: dict[str, str]) -> None:
    from transformers import PreTrainedModel

    def models() -> int:
        gc.collect()
        bodies = [one for one in gc.get_objects() if isinstance(one, PreTrainedModel)]
        return sum(hasattr(one, "lm_head") for one in bodies)

    before = models()
    alive: dict[str, set[int]] = {}
    model, other = pair
    ask(
        model,
        other,
        {"b": texts["b"]},
        name="mine",
        on_progress=lambda one: alive.setdefault(one.note, set()).add(models() - before),
    )
    assert alive == {"model": {1}, "mine": {1}, "": {1}}


def test_what_is_printed(
    pair: tuple[Path, Path], texts: dict[str, str], tmp_path: Path, capsys: Any
) -> None:
    model, other = pair
    said = [f"--held-out={name}={source}" for name, source in texts.items()]
    how = [*said, "--chunk", "40", "--device", "cpu", "--dtype", "float32"]
    command = ["eval", str(model), "--agreement-with", str(other), *how]
    assert main([*command, "-o", str(tmp_path / "run")]) == 0
    found = dict(Run.load(tmp_path / "run").agreement)
    lines = capsys.readouterr().out.splitlines()
    at = lines.index(f"experts selected as in model: {found['tokens']} tokens of 5 texts, 3 layers")
    cells = [re.split(r"  +", line) for line in lines[at + 1 : at + 7]]
    assert cells[0] == ["experts", "same", "95% interval", "least in layer", "least in text"]
    assert [row[0] for row in cells[1:]] == [
        *("rank 1", "rank 2", "rank 3", "all, any order", "mean overlap")
    ]
    low, high = found["intervals"]["ranks"][1]
    worst = min(found["layers"], key=lambda layer: layer["ranks"][1])
    text = min(found["domains"], key=lambda name: found["domains"][name]["ranks"][1])
    assert cells[2][1:] == [
        f"{found['ranks'][1]:.2%}",
        f"[{low:.2%}, {high:.2%}]",
        f"{worst['layer']}: {worst['ranks'][1]:.2%}",
        f"{text}: {found['domains'][text]['ranks'][1]:.2%}",
    ]
    assert main([*command, "-o", str(tmp_path / "json"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["runs"][0]["agreement"] == found
    assert percent(0.999999) == "99.99%" and percent(1.0) == "100.00%"


def test_prompts_where_there_is_no_text(pair: tuple[Path, Path], tmp_path: Path) -> None:
    model, other = pair
    asked = writing(tmp_path / "w.jsonl", 4)
    cloze = choosing(tmp_path / "c.jsonl", 3)
    for name, kind, file in (("w", "generate", asked), ("c", "cloze", cloze)):
        (tmp_path / f"{name}.toml").write_text(
            f'schema = "moeprune.task/1"\nkind = "{kind}"\nquestions = "{file.name}"\n'
            "chat_template = false\nmax_new_tokens = 3\n"
            if kind == "generate"
            else f'schema = "moeprune.task/1"\nkind = "{kind}"\nquestions = "{file.name}"\n'
            "chat_template = false\n",
            "utf-8",
        )
    tasks = [str(tmp_path / "w.toml"), str(tmp_path / "c.toml")]
    how = {"device": "cpu", "dtype": "float32", "tasks": tasks}
    (run,) = moeprune.eval(model, agreement_with=other, **how)
    found = run.agreement
    assert found["documents"] == 7
    assert 0 < found["same_set"] < 1
    assert {"größe", "math"} < {*found["domains"]}


def test_it_goes_on(
    pair: tuple[Path, Path], texts: dict[str, str], tmp_path: Path, monkeypatch: Any
) -> None:
    """Stopped while they read, both read again; stopped later, what was counted is kept."""
    model, other = pair
    ask(model, other, texts, output=tmp_path / "whole", batch_size=1)
    asked = 0

    def stop() -> bool:
        nonlocal asked
        asked += 1
        return asked == left

    reports: list[Any] = []
    left = 3
    with pytest.raises(StoppedError, match="begins there again"):
        ask(model, other, texts, output=tmp_path / "runs", batch_size=1, stop=stop)
    assert not (tmp_path / "runs.progress").exists()
    asked, left = 0, 2 * 12 + 3
    with pytest.raises(StoppedError, match="questions"):
        ask(model, other, texts, output=tmp_path / "runs", batch_size=1, stop=stop)
    ask(model, other, texts, output=tmp_path / "runs", batch_size=1, on_progress=reports.append)
    assert {report.stage for report in reports} == {"eval"}  # nobody listens again
    for name in ("run.json", "samples.jsonl"):
        assert (tmp_path / "runs" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    ask(model, other, texts, output=tmp_path / "b", batch_size=1, on_progress=reports.append)
    steps = [report for report in reports if report.stage == "selection"]
    assert steps[-1].done == steps[-1].total == 2 * sum(len(text.encode()) for text in TEXTS)


def test_refused_in_one_line(
    tiny: Any, pair: tuple[Path, Path], texts: dict[str, str], tmp_path: Path
) -> None:
    model, other = pair

    def refusal(kind: type[MoePruneError], *args: Any, **words: Any) -> str:
        with pytest.raises(kind) as caught:
            ask(*args, texts, output=tmp_path / "out", **words)
        assert "\n" not in str(caught.value)
        assert not (tmp_path / "out").exists() and not (tmp_path / "out.progress").exists()
        return str(caught.value)

    olmoe = tiny("olmoe")
    assert "family: olmoe there, qwen3_moe here" in refusal(MismatchError, model, olmoe)
    deeper = tiny_checkpoint("qwen3_moe", tmp_path / "deeper", num_hidden_layers=5)
    assert "MoE layers" in refusal(MismatchError, model, deeper)
    wider = tiny_checkpoint("qwen3_moe", tmp_path / "wider", num_experts=16)
    assert "experts in its layers" in refusal(MismatchError, model, wider)
    shutil.copytree(other, tmp_path / "words")
    file = tmp_path / "words" / "tokenizer.json"
    body = json.loads(file.read_text("utf-8"))
    vocab = body["model"]["vocab"]
    vocab["a"], vocab["b"] = vocab["b"], vocab["a"]
    vocab["u"], vocab["n"] = vocab["n"], vocab["u"]
    file.write_text(json.dumps(body), "utf-8")
    assert "its tokenizer makes other tokens" in refusal(MismatchError, model, tmp_path / "words")
    moeprune.export(olmoe, plan=plan_keeping(olmoe, [range(8)] * 2), output=tmp_path / "pruned")
    moeprune.export(model, plan=plan_keeping(model, KEEP), output=tmp_path / "mine")
    assert "was pruned from" in refusal(MismatchError, tmp_path / "mine", wider)
    assert "was pruned from" in refusal(MismatchError, wider, tmp_path / "mine")
    assert "nothing" in refusal(MoePruneError, model, tmp_path / "nothing")
    uneven = plan_keeping(model, UNEVEN)
    moeprune.export(model, plan=uneven, output=tmp_path / "layers", per_layer=True)
    line = refusal(UnsupportedModelError, tmp_path / "layers", tmp_path / "mine")
    assert "Name that one as the other model" in line
    long = tiny_checkpoint("qwen3_moe", tmp_path / "small", vocab_size=200, pad_token_id=None)
    add_tokenizer(long)
    assert "the model has 200" in refusal(CheckpointError, model, long)
    prompts = rows(tmp_path / "p.jsonl", [{"prompt": "1 plus"}])
    with pytest.raises(UsageError, match="Add --corpus or --held-out"):
        moeprune.eval(
            model,
            agreement_with=other,
            degeneration=[str(prompts)],
            max_new_tokens=2,
            device="cpu",
            chat_template=False,
        )


def test_a_run_that_was_edited(
    pair: tuple[Path, Path], texts: dict[str, str], tmp_path: Path
) -> None:
    model, other = pair
    ask(model, other, texts, output=tmp_path / "run")
    file = tmp_path / "run" / "run.json"
    body = json.loads(file.read_text("utf-8"))
    for name, value in (
        ("k", 3),
        ("ranks", ["1"]),
        ("layers", []),
        ("domains", {}),
        ("intervals", None),
        ("with", "x"),
        ("same_set", None),
    ):
        file.write_text(json.dumps({**body, "agreement": {**body["agreement"], name: value}}))
        with pytest.raises(RunError, match="Evaluate again"):
            Run.load(tmp_path / "run")
    file.write_text(json.dumps({**body, "agreement": {}}))
    assert Run.load(tmp_path / "run").agreement == {}
