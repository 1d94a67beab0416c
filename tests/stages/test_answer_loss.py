"""The loss of right answers, of a model and under plans, against transformers and an export."""

from __future__ import annotations

import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from plans import plan_keeping
from questions import choosing, rows, writing

import moeprune
from moeprune.cli.main import main
from moeprune.core.run import Run
from moeprune.errors import DomainError, RunError, StoppedError, UsageError

PAIRS = {
    "sums": [(f"{n} + {n} = ", f"{2 * n}") for n in range(7)],
    "größer": [(f"größer als {n}?", f" {n + 1}, {n + 2}") for n in range(5)],
}
ASKED = [{"role": "user", "content": "1+1?"}, {"role": "assistant", "content": "zwei"}]
KEEP = [[0, 2, 3, 5, 6, 7], [0, 1, 2, 3, 4, 5], [1, 2, 3, 4, 6, 7]]


@pytest.fixture(scope="module")
def model(tiny: Any) -> Path:
    found: Path = tiny("qwen3_moe")
    return found


@pytest.fixture(scope="module")
def export(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("export") / "out"
    moeprune.export(model, plan=plan_keeping(model, KEEP), output=out)
    return out


@pytest.fixture(scope="module")
def sources(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("texts")
    return {
        name: str(
            rows(folder / f"{number}.jsonl", [{"prompt": p, "completion": c} for p, c in pairs])
        )
        for number, (name, pairs) in enumerate(PAIRS.items())
    }


def reference(model: Path, pairs: Sequence[tuple[str, str]]) -> float:
    """Mean nats of the answers' tokens, one document at a time; a token is a byte."""
    from transformers import AutoModelForCausalLM, AutoTokenizer

    live = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model)
    nats, tokens = 0.0, 0
    for prompt, answer in pairs:
        ids = torch.tensor([tokenizer(prompt + answer, add_special_tokens=False)["input_ids"]])
        first = len(prompt.encode())
        with torch.no_grad():
            logits = live(input_ids=ids).logits[0].double()
        found = torch.log_softmax(logits, -1)
        for place in range(first, ids.shape[1]):
            nats -= float(found[place - 1, ids[0, place]])
            tokens += 1
    return nats / tokens


def test_texts_with_answers_against_transformers_and_the_export(
    model: Path, export: Path, sources: dict[str, str]
) -> None:
    variants = {"whole": None, "plan": plan_keeping(model, KEEP)}
    whole, plan = moeprune.eval(
        model, held_out=sources, variants=variants, answer_loss=True, batch_size=3
    )
    (alone,) = moeprune.eval(export, held_out=sources, answer_loss=True)
    for name, pairs in PAIRS.items():
        before, after = reference(model, pairs), reference(export, pairs)
        assert abs(before - after) > 1e-3
        found = {
            run.name: run.answer_loss["perplexity-held-out"]["domains"][name]
            for run in (whole, plan, alone)
        }
        tokens = sum(len(answer.encode()) for _, answer in pairs)
        assert {one["tokens"] for one in found.values()} == {tokens}
        assert found["whole"]["nats"] == pytest.approx(before, abs=1e-5)
        assert found["plan"]["nats"] == pytest.approx(after, abs=1e-5)
        assert found["plan"]["base"] == found["whole"]["nats"]
        assert found[alone.name]["nats"] == pytest.approx(after, abs=1e-5)
        assert "base" not in found["whole"] and "base" not in found[alone.name]
    assert len({run.answer_loss["perplexity-held-out"]["inputs"] for run in (plan, alone)}) == 1
    # Of the export alone, the base's run says what it was before.
    compared = moeprune.compare(whole, [plan, alone]).to_json()["answer_loss"]["domains"]
    assert len(compared) == 4
    for one, other in zip(compared[:2], compared[2:], strict=True):
        assert one["domain"] == other["domain"]
        assert one["change"] == pytest.approx(other["change"], abs=1e-5)
        assert one["base"] == other["base"]


def test_answers_of_tasks(model: Path, export: Path, tmp_path: Path) -> None:
    writing(tmp_path / "writing.jsonl")
    choosing(tmp_path / "choosing.jsonl")
    stated = 'schema = "moeprune.task/1"\nchat_template = false\n'
    for name, text in {
        "written": 'kind = "generate"\nquestions = "writing.jsonl"\nmax_new_tokens = 3\n',
        "searched": 'kind = "generate"\nquestions = "writing.jsonl"\nmax_new_tokens = 3\n'
        'extract = "last-number"\n',
        "whole": 'kind = "generate"\nquestions = "writing.jsonl"\nmax_new_tokens = 3\n'
        "extract = 'regex:\\A(\\d+)\\Z'\ndelimiter = \"\"\n",
        "cloze": 'kind = "cloze"\nquestions = "choosing.jsonl"\n',
    }.items():
        (tmp_path / f"{name}.toml").write_text(stated + text)
    tasks = [str(tmp_path / f"{name}.toml") for name in ("written", "searched", "whole", "cloze")]
    (run,) = moeprune.eval(model, tasks=tasks, plan=plan_keeping(model, KEEP), answer_loss=True)
    assert set(run.answer_loss) == {"written", "whole", "cloze"}
    for name, space in (("written", " "), ("whole", "")):
        pairs = [(f"{n} plus {n} " * (1 + n % 3) + "is", f"{space}{2 * n}") for n in range(7)]
        ((_, found),) = run.answer_loss[name]["domains"].items()
        assert found["nats"] == pytest.approx(reference(export, pairs), abs=1e-5)
        assert found["base"] == pytest.approx(reference(model, pairs), abs=1e-5)
    right = [
        (f"What is {n} and {n * n}? " + "Think. " * (n % 4), f"it is {n + n % 2}" + "!" * (n % 2))
        for n in range(0, 9, 2)
    ]
    found = run.answer_loss["cloze"]["domains"]["größe"]
    # White space between question and answer belongs to the answer.
    spaced = [(text.rstrip(), f"{text[len(text.rstrip()) :]} {answer}") for text, answer in right]
    assert found["base"] == pytest.approx(reference(model, spaced), abs=1e-5)


def test_turns_of_a_chat_are_answers_each(model: Path, tmp_path: Path) -> None:
    source = str(rows(tmp_path / "chats.jsonl", [{"messages": ASKED * 2}]))
    (run,) = moeprune.eval(model, held_out={"chats": source}, chat_template=True, answer_loss=True)
    found = run.answer_loss["perplexity-held-out"]["domains"]["chats"]
    assert found["tokens"] == 2 * (len("zwei") + 1)
    turn = "<|im_start|>user\n1+1?<|im_end|>\n<|im_start|>assistant\n"
    # Special tokens are one token each: counted as bytes by hand below.
    from transformers import AutoModelForCausalLM, AutoTokenizer

    live = AutoModelForCausalLM.from_pretrained(model, dtype=torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(model)
    text = f"{turn}zwei<|im_end|>\n" * 2
    ids = tokenizer(text, add_special_tokens=False)["input_ids"]
    with torch.no_grad():
        scores = torch.log_softmax(live(input_ids=torch.tensor([ids])).logits[0].double(), -1)
    header = len(tokenizer(turn, add_special_tokens=False)["input_ids"])
    half = len(ids) // 2
    places = [start + header + n for start in (0, half) for n in range(5)]
    nats = -sum(float(scores[place - 1, ids[place]]) for place in places) / len(places)
    assert found["nats"] == pytest.approx(nats, abs=1e-5)


def test_the_batch_size_hardly_moves_it_and_a_run_survives_its_file(
    model: Path, sources: dict[str, str], tmp_path: Path
) -> None:
    how: dict[str, Any] = {"held_out": sources, "plan": plan_keeping(model, KEEP)}
    first, second = (
        moeprune.eval(
            model, output=tmp_path / name, answer_loss=True, batch_size=size, name="run", **how
        )[0]
        for name, size in (("a", 1), ("b", 64))
    )
    for one, other in zip(leaves(first.answer_loss), leaves(second.answer_loss), strict=True):
        assert math.isclose(one, other, rel_tol=1e-5)
    assert Run.load(tmp_path / "a").answer_loss == first.answer_loss
    body = json.loads((tmp_path / "a" / "run.json").read_text())
    for broken in ({"x": 1}, {"x": {"inputs": "", "domains": {"d": {"tokens": 0, "nats": 1.0}}}}):
        (tmp_path / "a" / "run.json").write_text(json.dumps({**body, "answer_loss": broken}))
        with pytest.raises(RunError, match="answer_loss is not of the form"):
            Run.load(tmp_path / "a")


def test_stopped_while_it_is_measured_it_begins_there_again(
    model: Path, sources: dict[str, str], tmp_path: Path
) -> None:
    how: dict[str, Any] = {
        "held_out": sources,
        "plan": plan_keeping(model, KEEP),
        "name": "run",
        "answer_loss": True,
        "batch_size": 3,
    }
    moeprune.eval(model, output=tmp_path / "whole", **how)
    for calls in (1, 6, 9):  # batches: four of the model, four under the mask, then the questions
        left = iter(range(calls))
        with pytest.raises(StoppedError) as stopped:
            moeprune.eval(
                model, output=tmp_path / "s", stop=lambda n=left: next(n, None) is None, **how
            )
        assert ("whose loss is measured" in str(stopped.value)) is (calls < 9)
    moeprune.eval(model, output=tmp_path / "s", **how)
    for name in ("run.json", "samples.jsonl"):
        assert (tmp_path / "s" / name).read_bytes() == (tmp_path / "whole" / name).read_bytes()
    moeprune.eval(model, output=tmp_path / "s", overwrite=True, **{**how, "answer_loss": False})
    assert Run.load(tmp_path / "s").answer_loss == {}


def leaves(body: Any) -> list[float]:
    if isinstance(body, dict):
        return [leaf for key in sorted(body) for leaf in leaves(body[key])]
    return [body] if isinstance(body, int | float) else []


def test_nothing_is_measured_unasked(model: Path, sources: dict[str, str]) -> None:
    for answer_loss in (None, False):
        (run,) = moeprune.eval(
            model, held_out=sources, plan=plan_keeping(model, KEEP), answer_loss=answer_loss
        )
        assert run.answer_loss == {} and "answer_loss" not in run.header()


def test_what_a_plan_predicts_stands_beside_what_is_measured(
    model: Path, sources: dict[str, str], tmp_path: Path
) -> None:
    stats = moeprune.calibrate(model, domains={"sums": sources["sums"]}, loss_aware=True)
    plan = moeprune.plan(stats, method="reap", ratio=0.25)
    assert set(plan.predicted) == {"sums"}
    moeprune.export(model, plan=plan, output=tmp_path / "out")
    whole, masked = moeprune.eval(model, held_out=sources, variants={"whole": None, "masked": plan})
    (exported,) = moeprune.eval(tmp_path / "out", held_out=sources)
    for run in (masked, exported):
        domains = run.answer_loss["perplexity-held-out"]["domains"]
        assert domains["sums"]["predicted"] == plan.predicted["sums"] > 0
        assert "predicted" not in domains["größer"]
    assert "predicted" not in whole.answer_loss["perplexity-held-out"]["domains"]["sums"]
    (one, other) = moeprune.compare(whole, [masked, exported]).losses.changes[::2]
    assert one.loss.change == pytest.approx(other.loss.change, abs=1e-5)
    # Of other experts than the lists say, and of other ranks than are removed, nothing is known.
    plan.save(tmp_path / "plan.json")
    body = json.loads((tmp_path / "plan.json").read_text())
    kept = body["layers"][0]["keep"]
    gone = sorted(set(range(body["layers"][0]["num_experts"])) - set(kept))
    body["layers"][0]["keep"] = sorted([*kept[1:], gone[0]])
    (tmp_path / "plan.json").write_text(json.dumps(body))
    for how in ({"plan": tmp_path / "plan.json"}, {"plan": plan, "k1": 2, "k2": 3}):
        (run,) = moeprune.eval(model, held_out=sources, **how)  # type: ignore[arg-type]
        assert run.answer_loss == {}


def test_what_cannot_be_measured_is_said_and_the_questions_are_asked(
    model: Path, sources: dict[str, str], tmp_path: Path
) -> None:
    stats = moeprune.calibrate(model, domains={"sums": sources["sums"]}, loss_aware=True)
    plan = moeprune.plan(stats, method="reap", ratio=0.25)
    copy = tmp_path / "model"
    shutil.copytree(model, copy)
    (copy / "chat_template.jinja").write_text(  # earlier answers in capitals
        "{% for m in messages %}<|im_start|>{{ m.content if loop.last else m.content | upper }}"
        "{% endfor %}{% if add_generation_prompt %}<|im_start|>{% endif %}"
    )
    chats = str(rows(tmp_path / "chats.jsonl", [{"messages": ASKED * 2}]))
    how: dict[str, Any] = {"held_out": {"chats": chats}, "plan": plan, "chat_template": True}
    said: list[str] = []
    (run,) = moeprune.eval(copy, on_warning=said.append, **how)
    assert run.samples and run.answer_loss == {}
    (line,) = [text for text in said if text.startswith("the loss that is predicted is not")]
    assert "chats.jsonl, line 1" in line and "\n" not in line
    with pytest.raises(DomainError, match="its answer cannot be found"):
        moeprune.eval(copy, answer_loss=True, **how)


def test_without_an_answer_it_is_refused_in_one_line(model: Path, tmp_path: Path) -> None:
    writing(tmp_path / "writing.jsonl")
    with pytest.raises(UsageError, match=r"^--answer-loss takes .* states none\. Add ") as refused:
        moeprune.eval(
            model,
            degeneration=[str(tmp_path / "writing.jsonl")],
            chat_template=False,
            answer_loss=True,
            max_new_tokens=4,
        )
    assert "\n" not in str(refused.value)


def test_it_is_shown(
    model: Path, sources: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = tmp_path / "plan.json"
    plan_keeping(model, KEEP).save(plan)
    held = [f"--held-out={name}={source}" for name, source in sources.items()]
    asked = ["eval", str(model), *held, "--answer-loss"]
    base, pruned = str(tmp_path / "base"), str(tmp_path / "pruned")
    assert main([*asked, "-o", base]) == 0
    shown = capsys.readouterr().out
    assert (
        "loss of the right answers, nats per token" in shown
        and "change" not in shown.split("loss of the right answers")[1].split("\n\n")[0]
    )
    assert main([*asked, "-o", pruned, "--plan", str(plan)]) == 0
    head = capsys.readouterr().out.split("nats per token (perplexity-held-out)\n")[1].split("\n")[0]
    assert head.split() == ["domain", "tokens", "without", "plan", "loss", "change"]
    assert main(["compare", base, pruned]) == 0
    shown = capsys.readouterr().out.split("nats per token (perplexity-held-out): change\n")[1]
    lines = [line.split() for line in shown.splitlines()[:3]]
    assert lines[0][0] == "domain" and {line[0] for line in lines[1:]} == set(PAIRS)
