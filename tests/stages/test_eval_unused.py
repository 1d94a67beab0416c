"""Options that would change nothing of what is asked are refused; those that do, are not."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from questions import choosing, rows, writing

import moeprune
from moeprune.errors import UsageError
from moeprune.packaged import calibration_folder

DEMO = calibration_folder() / "demo" / "model"
TEXT = {"held_out": {"t": "builtin:math"}, "chunks": 1}


def asked(**words: Any) -> None:
    moeprune.eval(DEMO, device="cpu", **words)


@pytest.mark.parametrize(
    ("words", "match"),
    [
        ({**TEXT, "limit": 2}, "--limit 2"),
        ({**TEXT, "shots": 2}, "--shots 2"),
        ({**TEXT, "max_new_tokens": 7}, "--max-new-tokens 7"),
        ({**TEXT, "temperature": 0.5}, "--temperature 0.5"),
        ({**TEXT, "temperature": 0.0}, "--temperature 0.0"),
        ({**TEXT, "thinking": False}, "--thinking off"),
        ({**TEXT, "chat_template": True}, "--chat-template on"),
        ({**TEXT, "think_end": "</t>"}, "--think-end '</t>'"),
        ({**TEXT, "expected": {"t": 0.5}}, "--expect t"),
        ({"tasks": "letters", "chunk": 9}, "--chunk 9"),
        ({"tasks": "letters", "chunks": 9}, "--chunks 9"),
        ({"tasks": "letters", "max_new_tokens": 9}, "--max-new-tokens 9"),
        ({"tasks": "letters", "temperature": 1.0}, "--temperature 1.0"),
        ({"tasks": "letters", "think_end": "x"}, "--think-end 'x'"),
        ({"degeneration": "builtin:math", "chunks": 9}, "--chunks 9"),
        ({"degeneration": "builtin:math", "shots": 1}, "--shots 1"),
    ],
    ids=str,
)
def test_what_changes_nothing_is_refused(words: dict[str, Any], match: str, tmp_path: Path) -> None:
    if "tasks" in words:
        words = {**words, "tasks": choosing(tmp_path / "letters.jsonl")}
    with pytest.raises(UsageError, match=match):
        asked(**words)


def test_what_changes_something_is_taken(tmp_path: Path) -> None:
    letters, words = choosing(tmp_path / "letters.jsonl"), writing(tmp_path / "words.jsonl")
    how = {"limit": 2, "max_new_tokens": 3, "temperature": 0.5, "chat_template": False}
    asked(tasks=[letters, words], **TEXT, chunk=9, **how)
    asked(degeneration="builtin:math", chunk=9, **how)
    asked(**TEXT, chat_template=False)  # which is true of bare text


def test_messages_are_what_a_chat_template_is_for(tiny: Any, tmp_path: Path) -> None:
    chat = [{"role": "user", "content": "Hello"}, {"role": "assistant", "content": "Hi"}]
    file = rows(tmp_path / "chat.jsonl", [{"messages": chat}])
    (run,) = moeprune.eval(
        tiny("olmoe"), device="cpu", held_out={"t": str(file)}, chat_template=True
    )
    assert len(run.samples) == 1
