"""Loops are looked for after beginnings of texts, as calibration reads them; no file is needed."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from questions import rows, writing
from transformers import AutoModelForCausalLM, AutoTokenizer

import moeprune
from moeprune.errors import DomainError, UsageError
from moeprune.packaged import calibration_folder

DEMO = calibration_folder() / "demo" / "model"
BUDGET = 12


def probed(model: Path = DEMO, **words: Any) -> Any:
    (run,) = moeprune.eval(model, device="cpu", **{"max_new_tokens": BUDGET, **words})
    return run


@torch.inference_mode()
def slow_greedy(ids: list[int]) -> str:
    model = AutoModelForCausalLM.from_pretrained(DEMO).eval()
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    prompt = len(ids)
    for _ in range(BUDGET):
        ids = [*ids, int(model(torch.tensor([ids])).logits[0, -1].argmax())]
        if ids[-1] == tokenizer.eos_token_id:
            break
    return str(tokenizer.decode(ids[prompt:], skip_special_tokens=True))


def test_a_text_goes_on_from_its_first_half(tmp_path: Path) -> None:
    texts = ["Ali has 9 pens and gives 5 away.", "Which is larger?"]
    file = rows(tmp_path / "t.jsonl", [{"text": text} for text in texts])
    run = probed(degeneration=f"mine={file}")
    assert list(run.tasks) == ["degeneration-mine"]
    tokenizer = AutoTokenizer.from_pretrained(DEMO)
    for text, sample in zip(texts, run.samples, strict=True):
        ids = tokenizer(text)["input_ids"]
        assert sample.details["text"] == slow_greedy(ids[: len(ids) // 2])


def test_built_in_texts_and_files_side_by_side(tmp_path: Path) -> None:
    (tmp_path / "plain.txt").write_text("one text\ftwo texts\f", "utf-8")
    questions = writing(tmp_path / "q.jsonl")
    sources = ["builtin:math", str(tmp_path / "plain.txt"), str(questions), "c=builtin:code"]
    run = probed(degeneration=sources, limit=2, chunk=32)
    names = [f"degeneration-{name}" for name in ("q", "math", "plain", "c")]
    assert list(run.tasks) == names
    assert {name: len(run.of_task(name)) for name in names} == dict.fromkeys(names, 2)
    assert run.tasks["degeneration-math"]["details"]["source"] == "builtin:math"
    again = probed(degeneration=sources, limit=2, chunk=32, batch_size=1)
    assert again.samples == run.samples


def test_seeds_draw_each_prompt_anew() -> None:
    run = probed(degeneration="builtin:math", limit=2, temperature=1.0, seeds=3)
    assert [sample.seed for sample in run.samples] == [0, 1, 2] * 2
    assert len({sample.details["text"] for sample in run.samples}) > 2


def test_a_chat_is_asked_by_the_template(tiny: Any, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    source = f"chat={rows(tmp_path / 'chat.jsonl', [{'messages': chat}])}"
    run = probed(tiny("olmoe"), degeneration=source)
    assert run.tasks["degeneration-chat"]["protocol"]["chat_template"] is True
    with pytest.raises(UsageError, match="holds 'messages'"):
        probed(tiny("olmoe"), degeneration=source, chat_template=False)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({"degeneration": "builtin:mat"}, "Did you mean 'math'"),
        ({"degeneration": "hf:a/b:train:text"}, "needs a name"),
        ({"degeneration": "=builtin:math"}, "--degeneration '=builtin:math' is not NAME=SOURCE"),
        ({"degeneration": "nowhere.txt"}, "nowhere.txt does not exist"),
        ({"degeneration": ["builtin:math", "builtin:math"]}, "given twice"),
        ({"degeneration": "builtin:math", "max_new_tokens": 512}, "leaves no room"),
        ({"corpus": ["math"], "max_new_tokens": None}, "--corpus 'math' is not NAME=SOURCE"),
    ],
    ids=str,
)
def test_one_line_on_what_is_wrong(words: dict[str, Any], match: str) -> None:
    with pytest.raises((UsageError, DomainError), match=match):
        probed(**words)
