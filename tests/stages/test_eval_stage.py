"""eval on tiny models of every sort: every kind of task, one load, the same bytes each time."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import plan_keeping
from questions import KINDS, choosing, every_kind, rows, text, writing
from tiny import add_tokenizer, fill, tiny_checkpoint

import moeprune
from moeprune.core.run import Run
from moeprune.errors import (
    CheckpointError,
    DomainError,
    MismatchError,
    MoePruneError,
    OutputError,
    UnsupportedModelError,
    UsageError,
)


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    return every_kind(tmp_path_factory.mktemp("tasks"))


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    return {"größe": text(tmp_path_factory.mktemp("texts") / "t.jsonl")}


def dense(path: Path) -> Path:
    """A causal language model without experts."""
    from transformers import AutoConfig, AutoModelForCausalLM

    config = AutoConfig.for_model(
        "qwen3",
        vocab_size=272,
        hidden_size=32,
        intermediate_size=40,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=8,
        max_position_embeddings=512,
        pad_token_id=256,
        bos_token_id=257,
        eos_token_id=257,
    )
    model = AutoModelForCausalLM.from_config(config).float().eval()
    fill(model)
    model.save_pretrained(path)
    return add_tokenizer(path)


def data(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def ask(model: Path, output: Path | None, **words: Any) -> tuple[Run, ...]:
    chunk = {"chunk": 50} if words.get("corpus") or words.get("held_out") else {}
    return moeprune.eval(model, output=output, **{"device": "cpu", **chunk, **words})


def test_every_kind_of_task(
    tiny: Any, tasks: list[str], corpus: dict[str, str], tmp_path: Path
) -> None:
    (run,) = ask(tiny("qwen3_moe"), tmp_path / "run", tasks=tasks, held_out=corpus)
    assert [task["kind"] for task in run.tasks.values()] == list(KINDS)
    assert list(run.tasks) == [*KINDS[:4], "perplexity-held-out"]
    assert Run.load(tmp_path / "run") == run
    for name, task in run.tasks.items():
        samples = run.of_task(name)
        assert task["summary"]["questions"] == len(samples) >= 7
        assert len({sample.input for sample in samples}) == len(samples)
        assert {sample.domain for sample in samples} <= {"größe", "math", name}
        assert all((sample.tokens > 0) == (name in KINDS[2:4]) for sample in samples)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["run"]
    header = json.loads((tmp_path / "run" / "run.json").read_text("utf-8"))
    assert str(tmp_path) not in json.dumps(header)
    assert header["model"]["experts"] == [12, 12, 12]
    assert header["provenance"]["dtype"] == "float32"
    assert len(header["probe"]["logits"]) == 64


def test_neither_batch_size_nor_the_order_of_a_file_matters(tiny: Any, tmp_path: Path) -> None:
    """Nor the questions beside: answers are those of each question asked alone."""
    model = tiny("qwen3_moe")
    lines = choosing(tmp_path / "a.jsonl", 12).read_text("utf-8").splitlines(keepends=True)
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "a.jsonl").write_text("".join(lines[::-1]), "utf-8")
    told: dict[str, dict[Any, Any]] = {}
    for name, file, words in (
        ("all", tmp_path / "a.jsonl", {}),
        ("one by one", tmp_path / "a.jsonl", {"batch_size": 1}),
        ("three", tmp_path / "a.jsonl", {"batch_size": 3}),
        ("reversed", tmp_path / "b" / "a.jsonl", {}),
    ):
        (run,) = ask(model, None, tasks=file, chat_template=False, **words)
        told[name] = {
            one.key: (one.input, one.prediction, one.correct, one.answer) for one in run.samples
        }
    for name in told:
        assert told[name] == told["all"], name


def test_variants_are_asked_the_same_by_one_load(
    tiny: Any,
    tasks: list[str],
    corpus: dict[str, str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    from moeprune.observe import load

    model = tiny("qwen3_moe")
    keep = [range(9), range(3, 12), range(2, 11)]
    plan_keeping(model, keep).save(tmp_path / "plan.json")
    file = tmp_path / "variants.toml"
    file.write_text(
        '[[variant]]\nname = "whole"\n[[variant]]\nname = "剪枝 ü"\nplan = "plan.json"\n', "utf-8"
    )
    loads = []
    own = load.load_causal_lm
    monkeypatch.setattr(load, "load_causal_lm", lambda *a, **w: loads.append(a) or own(*a, **w))
    words: dict[str, Any] = {"tasks": tasks, "corpus": corpus}
    runs = ask(model, tmp_path / "runs", variants=file, **words)
    assert len(loads) == 1
    assert [run.name for run in runs] == ["whole", "剪枝 ü"]
    assert runs[0].variant == {}
    plan = runs[1].variant["plan"]
    assert (plan["method"], plan["removed"], plan["experts"]) == ("manual", 9, [9, 9, 9])
    for name in ("whole", "剪枝 ü"):
        assert (tmp_path / "runs" / name / "run.json").is_file()
    one, other = runs
    assert [s.input for s in one.samples] == [s.input for s in other.samples]
    assert one.probe["inputs"] == other.probe["inputs"]
    assert one.probe["logits"] != other.probe["logits"]
    assert [s.details for s in one.samples] != [s.details for s in other.samples]
    # Each is what it is when it is asked alone, to the byte; and the mask is gone afterwards.
    (alone,) = ask(model, tmp_path / "alone", plan=tmp_path / "plan.json", name="剪枝 ü", **words)
    assert (
        data(tmp_path / "alone")["samples.jsonl"] == data(tmp_path / "runs")["剪枝 ü/samples.jsonl"]
    )
    assert alone.probe == other.probe
    (after,) = ask(model, tmp_path / "after", name="whole", **words)
    assert (
        data(tmp_path / "after")["samples.jsonl"] == data(tmp_path / "runs")["whole/samples.jsonl"]
    )
    assert after.probe == one.probe


def test_variants_named_in_python(tiny: Any, tasks: list[str], tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    plan = plan_keeping(model, [range(9)] * 3)
    runs = ask(model, tmp_path / "runs", variants={"a": None, "b": plan}, tasks=tasks[:1])
    assert [run.name for run in runs] == ["a", "b"]
    assert (tmp_path / "runs" / "b" / "samples.jsonl").is_file()


def test_a_model_without_experts(
    tasks: list[str], corpus: dict[str, str], tiny: Any, tmp_path: Path
) -> None:
    model = dense(tmp_path / "dense")
    (run,) = ask(model, tmp_path / "run", tasks=tasks, corpus=corpus)
    assert len(run.samples) >= 35
    assert "experts" not in run.model
    plan = plan_keeping(tiny("qwen3_moe"), [range(9)] * 3)
    with pytest.raises(UnsupportedModelError):
        ask(model, tmp_path / "no", tasks=tasks, plan=plan)
    other = dense(tmp_path / "other")
    index = other / "model.safetensors"
    raw = bytearray(index.read_bytes())
    raw[-40:] = bytes(40)  # another one of the same shape
    index.write_bytes(raw)
    assert ask(other, None, tasks=tasks[:1])[0].model["fingerprint"] != run.model["fingerprint"]


def test_one_question(tiny: Any, tmp_path: Path) -> None:
    file = choosing(tmp_path / "one.jsonl", 1)
    (run,) = ask(tiny("olmoe"), tmp_path / "run", tasks=str(file), chat_template=False)
    assert len(run.samples) == 1


def test_drawn_answers_are_repeated_measures(tiny: Any, tmp_path: Path) -> None:
    file = writing(tmp_path / "w.jsonl", 4)
    words: dict[str, Any] = {"tasks": str(file), "chat_template": False, "max_new_tokens": 5}
    (run,) = ask(tiny("olmoe"), tmp_path / "run", temperature=1.0, seeds=3, **words)
    assert [(s.id, s.seed) for s in run.samples] == [
        (f"w{n}", seed) for n in range(4) for seed in range(3)
    ]
    texts = {s.details["text"] for s in run.samples}
    assert len(texts) > 6
    (again,) = ask(tiny("olmoe"), None, temperature=1.0, seeds=3, batch_size=1, **words)
    assert [s.details["text"] for s in again.samples] == [s.details["text"] for s in run.samples]
    with pytest.raises(UsageError, match="--seeds 3"):
        ask(tiny("olmoe"), None, seeds=3, **words)


def test_chunks_are_the_first_of_each_text(tiny: Any, corpus: dict[str, str]) -> None:
    (whole,) = ask(tiny("olmoe"), None, corpus=corpus)
    (two,) = ask(tiny("olmoe"), None, corpus=corpus, chunks=2)
    assert [s.key for s in two.samples] == [s.key for s in whole.samples[:2]]
    assert two.samples[0].details["tokens"] == 50


def test_nothing_is_replaced_that_is_no_run(tiny: Any, tasks: list[str], tmp_path: Path) -> None:
    model = tiny("olmoe")
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.txt").write_text("years")
    (tmp_path / "file").write_text("x")
    for name in ("mine", "file"):
        for overwrite in (False, True):
            with pytest.raises(OutputError, match="would be lost"):
                ask(model, tmp_path / name, tasks=tasks[:1], overwrite=overwrite)
    (first,) = ask(model, tmp_path / "run", tasks=tasks[:1])
    before = data(tmp_path / "run")
    with pytest.raises(OutputError, match="exists; name another folder, or pass --overwrite"):
        ask(model, tmp_path / "run", tasks=tasks[:1])
    assert data(tmp_path / "run") == before
    ask(model, tmp_path / "run", tasks=tasks[1:2], overwrite=True)
    assert list(Run.load(tmp_path / "run").tasks) == ["cloze"]
    ask(model, tmp_path / "run", tasks=tasks[:1], variants={"a": None}, overwrite=True)
    assert (
        list(data(tmp_path / "run")) == ["a/run.json", "a/samples.jsonl"]
        or len(data(tmp_path / "run")) == 2
    )
    assert {path.name for path in tmp_path.iterdir()} == {"mine", "file", "run"}
    with pytest.raises(OutputError, match="no/run"):
        ask(model, tmp_path / "no" / "run", tasks=tasks[:1])
    assert first.samples


@pytest.mark.parametrize(
    ("words", "error", "match"),
    [
        ({}, UsageError, "nothing is asked.* prompts with --degeneration"),
        ({"tasks": "no.jsonl"}, UsageError, r"no\.jsonl does not exist"),
        ({"tasks": "lm_eval:"}, UsageError, "lm_eval: names no task"),
        ({"tasks": "T", "expected": {"letter": 0.5}}, UsageError, "Did you mean 'letters'"),
        ({"tasks": "T", "plan": "no.json"}, MoePruneError, r"no\.json does not exist"),
        ({"tasks": "T", "plan": "P", "variants": "v"}, UsageError, "leave --variants out"),
        ({"tasks": "T", "name": "n", "variants": "v"}, UsageError, "--name"),
        ({"tasks": "T", "variants": "no.toml"}, UsageError, r"no\.toml does not exist"),
        ({"tasks": "T", "dtype": "float8"}, UsageError, "no dtype named"),
        ({"tasks": "T", "device": "cuda:77"}, UsageError, "cannot be used here"),
        ({"corpus": ["x"]}, UsageError, "not NAME=SOURCE"),
        ({"tasks": "T", "include": "folder"}, UsageError, "--include is for lm-eval"),
        ({"tasks": "U"}, UsageError, "--chat-template on|off"),
        ({"tasks": "T", "revision": "main"}, UsageError, "local folder"),
    ],
    ids=str,
)
def test_wrong_requests(
    words: dict[str, Any],
    error: type[MoePruneError],
    match: str,
    tiny: Any,
    tasks: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    if words.get("tasks") == "T":
        words = {**words, "tasks": tasks[0]}
    if words.get("tasks") == "U":
        words = {**words, "tasks": str(choosing(tmp_path / "u.jsonl"))}
    with pytest.raises(error, match=match) as caught:
        ask(tiny("olmoe"), tmp_path / "run", **words)
    assert "\n" not in str(caught.value)
    assert not (tmp_path / "run").exists()
    assert not (tmp_path / "run.progress").exists()


def test_a_plan_of_another_model(tiny: Any, tasks: list[str], tmp_path: Path) -> None:
    plan = plan_keeping(tiny("qwen3_moe"), [range(9)] * 3)
    other = tiny_checkpoint("qwen3_moe", tmp_path / "other", seed=1)
    with pytest.raises(MismatchError, match=r"the plan is for .* this is other"):
        ask(other, None, tasks=tasks[:1], plan=plan)


def test_a_model_that_does_not_fit(
    tiny: Any, tasks: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    from moeprune.observe.streamed import memory

    monkeypatch.setattr(memory, "allowed_memory", lambda: 400_000_000)
    with pytest.raises(UsageError, match=r"at least and there are 400 MB.*--device auto") as no:
        ask(tiny("olmoe"), None, tasks=tasks[:1])
    assert "\n" not in str(no.value)


def test_code_that_is_not_ours_does_not_run(tiny: Any, tasks: list[str], tmp_path: Path) -> None:
    model = tiny("qwen3_moe")
    plan = plan_keeping(model, [range(9), range(8), range(12)])
    out = moeprune.export(model, plan=plan, output=tmp_path / "out", per_layer=True)
    (run,) = ask(out, None, tasks=tasks)
    assert run.variant["exported"] == "per-layer"
    assert run.model["experts"] == [9, 8, 12]
    code = out / "modeling_moeprune.py"
    code.write_bytes(b"raise SystemExit('it ran')\n" + code.read_bytes())
    with pytest.raises(UsageError, match="not the one that this moeprune writes"):
        ask(out, None, tasks=tasks)


def test_a_broken_model_is_said(tiny: Any, tasks: list[str], tmp_path: Path) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny("olmoe"), folder)
    (folder / "tokenizer.json").unlink()
    with pytest.raises(CheckpointError):
        ask(folder, None, tasks=tasks[:1])
    assert torch.get_num_threads() == 1


def test_a_tokenizer_of_another_model(tasks: list[str], tmp_path: Path) -> None:
    small = {"vocab_size": 60, **dict.fromkeys(("pad_token_id", "bos_token_id", "eos_token_id"), 1)}
    model = tiny_checkpoint("olmoe", tmp_path / "m", **small)
    for words in ({"tasks": tasks[:1]}, {"tasks": tasks[2:3]}):
        with pytest.raises(CheckpointError, match="belong to another model"):
            ask(model, None, **words)


def test_a_template_that_refuses_is_not_asked_where_it_is_off(
    tiny: Any, tasks: list[str], tmp_path: Path
) -> None:
    folder = tmp_path / "m"
    shutil.copytree(tiny("olmoe"), folder)
    template = "{{ raise_exception('only with a system message') }}"
    (folder / "chat_template.jinja").write_text(template)
    config = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
    config.pop("chat_template", None)
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    assert ask(folder, None, tasks=tasks[:1])[0].samples
    chats = rows(
        tmp_path / "c.jsonl",
        [{"messages": [{"role": "user", "content": f"{n}"}]} for n in range(3)],
    )
    with pytest.raises(UsageError, match="--chat-template on where"):
        ask(folder, None, corpus={"c": str(chats)})
    with pytest.raises(DomainError, match="refuses these messages"):
        ask(folder, None, corpus={"c": str(chats)}, chat_template=True)
    (run,) = ask(tiny("olmoe"), None, corpus={"c": str(chats)}, chat_template=True)
    assert run.samples[0].details["bytes"] > 20


def test_a_dataset_of_the_hub_needs_a_number(tiny: Any) -> None:
    with pytest.raises(UsageError, match="--chunks N"):
        ask(tiny("olmoe"), None, held_out={"c": "hf:org/data:test:text"})


def test_long_answers_are_looked_at_for_loops(tiny: Any, tmp_path: Path) -> None:
    file = writing(tmp_path / "prompts.jsonl", 3)
    words: dict[str, Any] = {"degeneration": file, "chat_template": False}
    (run,) = ask(tiny("olmoe"), None, **words)
    (name,) = run.tasks
    assert name == "degeneration-prompts"
    assert run.tasks[name]["protocol"]["max_new_tokens"] == 256  # half of what the model reads
    assert all(sample.tokens == 256 or not sample.truncated for sample in run.samples)
    assert run.tasks[name]["summary"]["loops"] is not None
    (short,) = ask(tiny("olmoe"), None, tasks=file, max_new_tokens=9, **words)
    assert list(short.tasks) == ["prompts", name]
    assert short.tasks[name]["protocol"]["max_new_tokens"] == 9


def test_what_is_expected_of_the_whole_model_is_not_asked_of_a_pruned_one(
    tiny: Any, tmp_path: Path
) -> None:
    model = tiny("qwen3_moe")
    plan = plan_keeping(model, [range(9)] * 3)
    file = choosing(tmp_path / "a.jsonl", 12)
    words: dict[str, Any] = {"tasks": file, "chat_template": False, "expected": {"a": 1.0}}
    (whole,) = ask(model, None, **words)
    assert "below-expected" in {guard["name"] for guard in whole.guards}
    (pruned,) = ask(model, None, plan=plan, **words)
    assert not {"below-expected", "near-chance"} & {guard["name"] for guard in pruned.guards}
    assert whole.tasks["a"]["sha256"] == pruned.tasks["a"]["sha256"]
    (unasked,) = ask(model, None, tasks=file, chat_template=False)
    assert unasked.tasks["a"]["sha256"] == whole.tasks["a"]["sha256"]
