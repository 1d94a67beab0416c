"""lm-eval asked of our loaded model gives what a plain lm-eval run of the folder gives."""

from __future__ import annotations

import copy
import logging
import os
import random
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from lm_eval_tasks import GROUP, NAMES, write_tasks
from plans import plan_keeping

import moeprune
from moeprune.core.progress import Progress
from moeprune.core.run import Run
from moeprune.core.sample import Sample
from moeprune.errors import UsageError
from moeprune.evaluate.harness.ask import ask_harness
from moeprune.evaluate.harness.parts import read_harness
from moeprune.evaluate.harness.run import run_harness
from moeprune.evaluate.harness.settings import HarnessSettings
from moeprune.observe.layers import moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.observe.tokenizer import load_tokenizer
from moeprune.packaged import calibration_folder
from moeprune.routing.mask import masked_experts
from moeprune.stages.identify import open_model

MODEL = calibration_folder() / "demo" / "model"
QUESTIONS = calibration_folder() / "demo" / "questions" / "math.jsonl"
SEED = 1234


@pytest.fixture(scope="module")
def tasks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("lm-eval")
    return write_tasks(folder, QUESTIONS)


@pytest.fixture(scope="module")
def live() -> Any:
    return load_causal_lm(MODEL, dtype="float32", device="cpu")


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    return load_tokenizer(MODEL)


@pytest.fixture(scope="module")
def plain(tasks: Path) -> Mapping[str, Any]:
    return plain_run(MODEL, tasks)


def plain_run(model: Path, tasks: Path) -> Mapping[str, Any]:
    """What somebody without moeprune would run."""
    import lm_eval
    from lm_eval.tasks import TaskManager

    return lm_eval.simple_evaluate(
        model="hf",
        model_args={"pretrained": str(model), "dtype": "float32"},
        device="cpu",
        batch_size=3,
        tasks=list(NAMES),
        task_manager=TaskManager(include_path=str(tasks), include_defaults=False),
        bootstrap_iters=0,
        fewshot_random_seed=SEED,
    )


def asked(
    live: Any, tokenizer: Any, tasks: Path, names: Sequence[str] = NAMES, **settings: Any
) -> tuple[tuple[Sample, ...], Mapping[str, Any]]:
    return run_harness(
        live,
        tokenizer,
        names,
        settings=HarnessSettings(seed=SEED, **settings),
        include=[tasks],
        batch_size=3,
    )


def assert_same(
    samples: Sequence[Sample], plain: Mapping[str, Any], *, relative: float = 0.0
) -> None:
    """Metric by metric, question by question; likelihoods of texts but for ``relative``."""
    compared = 0
    for name in NAMES:
        ours = {s.id: s for s in samples if s.task == f"lm_eval:{name}"}
        assert len(ours) == len({entry["doc_id"] for entry in plain["samples"][name]})
        for entry in plain["samples"][name]:
            sample = ours[str(entry["doc_id"])]
            for metric in entry["metrics"]:
                filter_ = "" if entry["filter"] == "none" else f",{entry['filter']}"
                if name == "tiny_text":
                    nll = pytest.approx(-entry[metric][0], rel=relative, abs=0)
                    assert sample.details["nll"] == nll
                else:
                    assert sample.metrics[f"{metric}{filter_}"] == entry[metric]
                compared += 1
    assert compared == 2 * 9 + 2 * 7 + 3 * 3


def test_numbers_are_those_of_plain_lm_eval(
    live: Any, tokenizer: Any, tasks: Path, plain: Mapping[str, Any]
) -> None:
    samples, entries = asked(live, tokenizer, tasks)
    assert_same(samples, plain)
    choice = [s for s in samples if s.task == "lm_eval:tiny_choice"]
    # The scores that decide, not only the decisions.
    for sample, entry in zip(choice, plain["samples"]["tiny_choice"], strict=True):
        assert sample.details["scores"] == [score for score, _ in entry["filtered_resps"]]
        assert sample.correct == bool(entry["acc"])
        assert sample.details["choices"] == 3
    mean = sum(s.correct or 0 for s in choice) / len(choice)
    assert mean == plain["results"]["tiny_choice"]["acc,none"]
    assert 0 < mean < 1, "a model that is always right or always wrong tells nothing"
    text = [s for s in samples if s.task == "lm_eval:tiny_text"]
    total, size = (sum(s.details[key] for s in text) for key in ("nll", "bytes"))
    bits = plain["results"]["tiny_text"]["bits_per_byte,none"]
    assert total / size / np.log(2) == pytest.approx(bits, rel=1e-12)
    assert [s.details["tokens"] for s in text] == [48, 960, 16]  # a character is a token
    assert list(entries) == [f"lm_eval:{name}" for name in NAMES]


def test_answers_that_are_written_are_read_and_measured(
    live: Any, tokenizer: Any, tasks: Path, plain: Mapping[str, Any]
) -> None:
    samples, _ = asked(live, tokenizer, tasks, ["tiny_written"])
    logged = [e for e in plain["samples"]["tiny_written"] if e["filter"] == "strict"]
    assert [s.details["text"] for s in samples] == [entry["resps"][0][0] for entry in logged]
    assert {s.details["judged_by"] for s in samples} == {"exact_match,strict"}
    assert [s.correct for s in samples] == [bool(entry["exact_match"]) for entry in logged]
    assert {True, False} == {s.correct for s in samples}
    ends = {tokenizer.eos_token_id}
    for sample, entry in zip(samples, logged, strict=True):
        # Independently: transformers goes on alone, token by token.
        ids = tokenizer(entry["arguments"][0][0], return_tensors="pt")["input_ids"]
        new: list[int] = []
        with torch.inference_mode():
            while (
                len(new) < 4 and not (new and new[-1] in ends) and "." not in _text(tokenizer, new)
            ):
                logits = live(torch.cat([ids, torch.tensor([new], dtype=torch.long)], 1)).logits
                new.append(int(logits[0, -1].argmax()))
        ended = new[-1] in ends or "." in _text(tokenizer, new)
        assert (sample.tokens, sample.truncated) == (len(new), not ended)
    assert {s.truncated for s in samples} == {True, False}


def _text(tokenizer: Any, ids: Sequence[int]) -> str:
    return str(tokenizer.decode(ids, skip_special_tokens=True))


def test_a_plan_in_memory_answers_as_its_export_under_plain_lm_eval(
    live: Any, tokenizer: Any, tasks: Path, tmp_path: Path, plain: Mapping[str, Any]
) -> None:
    keep = [sorted({(3 * row + i) % 16 for i in range(6)}) for row in range(4)]
    plan = plan_keeping(MODEL, keep)
    exported = moeprune.export(MODEL, plan=plan, output=tmp_path / "small")
    layers = moe_layers(live, open_model(MODEL).layout)
    whole, _ = asked(live, tokenizer, tasks)
    with masked_experts(
        live,
        routers=[layer.router for layer in layers],
        num_experts=[layer.num_experts for layer in layers],
        removed=[plan.removed[layer.row] for layer in layers],
    ):
        masked, _ = asked(live, tokenizer, tasks)
    # A router of 6 rows is multiplied by other kernels than one of 16: the last bits of float32.
    assert_same(masked, plain_run(exported, tasks), relative=1e-6)
    assert [s.input for s in masked] == [s.input for s in whole]
    assert [s.key for s in masked] == [s.key for s in whole]
    assert any(m.details != w.details for m, w in zip(masked, whole, strict=True))


def test_a_group_is_a_task_whose_domains_are_its_tasks(
    live: Any, tokenizer: Any, tasks: Path
) -> None:
    alone, _ = asked(live, tokenizer, tasks, ["tiny_choice", "tiny_written"])
    samples, entries = asked(live, tokenizer, tasks, [f"lm_eval:{GROUP}"])
    assert list(entries) == ["lm_eval:tiny_group"]
    assert [(s.task, s.domain) for s in samples] == [
        ("lm_eval:tiny_group", s.domain) for s in alone
    ]
    assert [s.id for s in samples] == [f"{s.domain}/{s.id}" for s in alone]
    assert [s.metrics for s in samples] == [s.metrics for s in alone]
    facts = entries["lm_eval:tiny_group"]["protocol"]["parts"]["tiny_choice"]
    assert (facts["version"], facts["shots"], facts["questions"]) == ("3.0", 2, 9)
    Run(name="x", tasks=entries, samples=samples)  # no id twice


def test_a_limit_takes_the_first_and_shots_replace_the_tasks_own(
    live: Any, tokenizer: Any, tasks: Path, plain: Mapping[str, Any]
) -> None:
    samples, entries = asked(live, tokenizer, tasks, ["tiny_choice"], limit=4)
    assert [s.id for s in samples] == ["0", "1", "2", "3"]
    for sample, entry in zip(samples, plain["samples"]["tiny_choice"][:4], strict=True):
        scores = [score for score, _ in entry["filtered_resps"]]
        assert sample.details["scores"] == pytest.approx(scores, rel=1e-5)  # other batches
    assert entries["lm_eval:tiny_choice"]["protocol"]["parts"]["tiny_choice"]["questions"] == 4
    unshot, other = asked(live, tokenizer, tasks, ["tiny_choice"], limit=4, shots=0)
    assert other["lm_eval:tiny_choice"]["protocol"]["parts"]["tiny_choice"]["shots"] == 0
    assert not {s.input for s in unshot} & {s.input for s in samples}
    assert other["lm_eval:tiny_choice"]["sha256"] != entries["lm_eval:tiny_choice"]["sha256"]


def test_settings_of_generation_replace_the_tasks_own(
    live: Any, tokenizer: Any, tasks: Path
) -> None:
    samples, _ = asked(live, tokenizer, tasks, ["tiny_written"], generation={"max_gen_toks": 1})
    assert {s.tokens for s in samples} == {1}


def test_a_kept_task_is_not_asked_again(live: Any, tokenizer: Any, tasks: Path) -> None:
    done: dict[str, Sequence[Sample]] = {}
    first, _ = run_harness(
        live,
        tokenizer,
        NAMES[:2],
        include=[tasks],
        on_done=lambda part, samples: done.update({part.name: samples}),
    )
    assert list(done) == list(NAMES[:2])
    asked_now: list[str] = []
    second, _ = run_harness(
        live,
        tokenizer,
        NAMES[:2],
        include=[tasks],
        kept={NAMES[0]: done[NAMES[0]]},
        on_done=lambda part, _: asked_now.append(part.name),
    )
    assert asked_now == [NAMES[1]]
    assert second == first


def test_what_is_read_once_is_asked_of_every_variant(
    live: Any, tokenizer: Any, tasks: Path
) -> None:
    settings = HarnessSettings(seed=SEED)
    (part,) = read_harness(["tiny_choice"], settings, include=[tasks])
    first, second = (ask_harness(live, tokenizer, part, settings) for _ in range(2))
    assert first == second
    (again,) = read_harness(["tiny_choice"], settings, include=[tasks])
    assert again.sha256 == part.sha256


def test_other_questions_are_another_task(tasks: Path, tmp_path: Path) -> None:
    moved = write_tasks(tmp_path / "moved", QUESTIONS)
    changed = write_tasks(tmp_path / "changed", QUESTIONS)
    shots = changed / "shots.jsonl"
    shots.write_text(shots.read_text().replace("25", "99"))
    (here,), (there,), (other,) = (
        read_harness(["tiny_choice"], HarnessSettings(), include=[folder])
        for folder in (tasks, moved, changed)
    )
    assert here.sha256 == there.sha256, "where the files lie decides nothing"
    assert here.sha256 != other.sha256


def test_inputs_that_are_cut_are_told(live: Any, tokenizer: Any, tasks: Path) -> None:
    for name, length in (("tiny_choice", 90), ("tiny_written", 40)):
        samples, _ = run_harness(live, tokenizer, [name], include=[tasks], max_length=length)
        cut = [bool(s.details.get("cut")) for s in samples]
        assert any(cut), name
    assert not all(cut), "the shorter prompts fit"


def test_nothing_is_left_behind_and_nothing_said(
    live: Any, tokenizer: Any, tasks: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    logger = logging.getLogger("lm_eval")
    pad, side = tokenizer.pad_token, tokenizer.padding_side
    random.seed(7)
    np.random.seed(7)
    torch.manual_seed(7)
    before = (
        dict(os.environ),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.random.get_rng_state().tolist(),
        (logger.level, logger.propagate, list(logger.handlers)),
        (sys.stdout, sys.stderr),
    )
    seen: list[Progress] = []

    def on_progress(progress: Progress) -> None:
        sys.stderr.write("\rdrawn")  # as the command line does
        seen.append(progress)

    run_harness(live, tokenizer, NAMES, include=[tasks], batch_size=3, on_progress=on_progress)
    assert before == (
        dict(os.environ),
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.random.get_rng_state().tolist(),
        (logger.level, logger.propagate, list(logger.handlers)),
        (sys.stdout, sys.stderr),
    )
    assert (tokenizer.pad_token, tokenizer.padding_side) == (pad, side)
    out, err = capfd.readouterr()
    assert out == ""
    assert err == "\rdrawn" * len(seen), "the caller's own progress, and no bar of lm-eval"
    last = {p.stage: p for p in seen}
    assert list(last) == [f"lm_eval {name}" for name in NAMES]
    assert all(p.done == p.total for p in last.values())
    assert (last["lm_eval tiny_written"].total, last["lm_eval tiny_text"].total) == (7, 4)


def test_a_tokenizer_without_padding_is_left_without(live: Any, tasks: Path) -> None:
    bare = load_tokenizer(MODEL)
    bare.pad_token = None
    asked(live, bare, tasks, ["tiny_written"])
    assert bare.pad_token is None


def test_a_failure_leaves_nothing_behind_either(live: Any, tokenizer: Any, tasks: Path) -> None:
    before = dict(os.environ), random.getstate(), sys.stdout, sys.stderr
    with pytest.raises(UsageError, match="--max-new-tokens"):
        run_harness(live, tokenizer, ["tiny_written"], include=[tasks], max_length=4)
    bare = load_tokenizer(MODEL)
    bare.bos_token = bare.eos_token = None
    with pytest.raises(UsageError, match="neither a begin nor an end token"):
        run_harness(live, bare, ["tiny_choice"], include=[tasks])
    with pytest.raises(UsageError, match=r"cannot ask task 'tiny_choice' \(Sample larger"):
        asked(live, tokenizer, tasks, ["tiny_choice"], shots=50)
    assert before == (dict(os.environ), random.getstate(), sys.stdout, sys.stderr)


_TEMPLATE = (
    "{{ strftime_now('%Y') }}{% for m in messages %}[{{ m.role }}]{{ m.content }}{% endfor %}"
    "{% if add_generation_prompt %}[assistant]{% if not enable_thinking %}.{% endif %}{% endif %}"
)


@pytest.mark.parametrize("thinking", [False, True])
@pytest.mark.parametrize("template", [_TEMPLATE, {"default": _TEMPLATE, "tool_use": "no"}])
def test_a_chat_template_is_applied_and_thinking_switched(
    live: Any, tasks: Path, thinking: bool, template: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    chats = load_tokenizer(MODEL)
    chats.chat_template = template
    seen: list[str] = []
    from moeprune.evaluate.harness.model import LoadedModel

    encode = LoadedModel.tok_batch_encode
    monkeypatch.setattr(
        LoadedModel,
        "tok_batch_encode",
        lambda self, strings, **told: seen.extend(strings) or encode(self, strings, **told),
    )
    samples, entries = asked(
        live,
        chats,
        tasks,
        ["tiny_written"],
        chat_template=True,
        thinking=thinking,
        think_end="</think>" if thinking else None,
        system="Answer.",
    )
    assert len(seen) == len(samples) == 7
    end = "[assistant]" if thinking else "[assistant]."
    # The year of every day, so that a run can be repeated and compared.
    assert all(text.startswith("2025[system]Answer.[user]") for text in seen)
    assert all(text.endswith(end) for text in seen)
    protocol = entries["lm_eval:tiny_written"]["protocol"]
    assert (protocol["chat_template"], protocol["thinking"]) == (True, thinking)
    assert chats.chat_template == template


def test_a_run_can_be_compared_with_what_plain_lm_eval_logged(
    live: Any, tokenizer: Any, tasks: Path, plain: Mapping[str, Any], tmp_path: Path
) -> None:
    from lm_eval.loggers import EvaluationTracker

    tracker = EvaluationTracker(output_path=str(tmp_path))
    tracker.general_config_tracker.model_name_sanitized = "logged"
    tracker.date_id = "2026-01-02T03-04-05.600000"
    for name, logged in plain["samples"].items():
        tracker.save_results_samples(name, copy.deepcopy(logged))
    samples, entries = asked(live, tokenizer, tasks)
    ours = Run(name="ours", tasks=entries, samples=samples)
    result = moeprune.compare(ours, tmp_path / "logged")
    (variant,) = result.variants
    tests = variant.to_json()["tasks"]
    # Joined by id, with the same inputs (others are an error), and the same answers.
    assert {
        name: (test["questions"], test["to_wrong"], test["to_right"], test["base"])
        for name, test in tests.items()
    } == {
        "lm_eval:tiny_choice": (9, 0, 0, pytest.approx(2 / 9)),
        "lm_eval:tiny_written": (7, 0, 0, pytest.approx(6 / 7)),
    }
