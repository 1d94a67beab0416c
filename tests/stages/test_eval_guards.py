"""Protocol guards on real runs of tiny models: what eval records of its own numbers."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import pytest
from plans import plan_keeping
from questions import rows, text
from safetensors.torch import load_file, save_file

import moeprune
from moeprune.packaged import calibration_folder
from moeprune.stages.identify import open_model

_LETTERS = 40


@pytest.fixture(scope="module")
def letters(tmp_path_factory: pytest.TempPathFactory) -> str:
    """Questions whose right letters are spread evenly."""
    items = [
        {"question": f"{n}?", "choices": ["one", "two", "three", "four"], "answer": n % 4}
        for n in range(_LETTERS)
    ]
    return str(rows(tmp_path_factory.mktemp("letters") / "letters.jsonl", items))


def said(model: Path, **words: Any) -> dict[str, list[str]]:
    """Guard -> what it is about, of all runs."""
    chunk = {"chunk": 50} if "corpus" in words or "held_out" in words else {}
    runs = moeprune.eval(model, device="cpu", **chunk, **words)
    found: dict[str, list[str]] = {}
    for guard in runs[0].guards:
        found.setdefault(guard["name"], []).append(guard["text"])
    return found


def test_a_random_model_guesses_and_prefers_a_letter(tiny: Any, letters: str) -> None:
    found = said(tiny("qwen3_moe"), tasks=letters, chat_template=False)
    assert "no better than guessing (25.0%)" in found["near-chance"][0]
    assert "not spread as the right ones" in found["unbalanced-letters"][0]
    assert "40 questions resolve differences" in found["resolution"][0]


def test_a_model_that_knows_is_left_alone() -> None:
    demo = calibration_folder() / "demo"
    tasks = [str(demo / "questions" / f"{name}.jsonl") for name in ("math", "science")]
    quiet = {"tasks": tasks, "effect": 0.9, "expected": {"science": 0.5}, "limit": 30}
    assert said(demo / "model", **quiet) == {}
    # One token: answers of one digit are right, words are not.
    found = said(demo / "model", **quiet, max_new_tokens=1)
    assert set(found) == {"budget", "below-expected"}
    assert "--max-new-tokens" in found["budget"][0]
    (below,) = found["below-expected"]
    assert below.startswith("task 'science'")
    assert "where 50.0% is expected" in below


def test_perplexity_of_a_model_that_chats(tiny: Any, tmp_path: Path) -> None:
    corpus = {"prose": text(tmp_path / "t.jsonl")}
    assert "bare text" in said(tiny("qwen3_moe"), held_out=corpus)["perplexity-on-chat"][0]
    model = tmp_path / "model"
    shutil.copytree(tiny("qwen3_moe"), model)
    (model / "chat_template.jinja").unlink()
    assert said(model, held_out=corpus) == {}


def test_experts_that_nobody_visits_are_removed_and_nothing_changes(
    tiny: Any, letters: str, tmp_path: Path
) -> None:
    model = tmp_path / "model"
    shutil.copytree(tiny("glm4_moe"), model)
    (shard,) = model.glob("*.safetensors")
    tensors = load_file(shard)
    for name, tensor in tensors.items():
        if name.endswith("e_score_correction_bias"):
            tensor[-1] = -1000.0
    save_file(tensors, shard, metadata={"format": "pt"})
    facts = open_model(model).facts
    dead = plan_keeping(model, [range(number - 1) for number in facts.num_experts])
    alive = plan_keeping(model, [range(1, number) for number in facts.num_experts])
    found = said(
        model,
        tasks=letters,
        chat_template=False,
        variants={"base": None, "dead": dead, "alive": alive},
    )
    assert len(found["identical"]) == 1
    assert found["identical"][0].startswith("dead has the logits of base")
