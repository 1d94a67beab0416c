"""Small tasks of every kind, for models whose tokenizer knows bytes."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

KINDS = ("letters", "cloze", "generate", "degeneration", "perplexity")


def rows(path: Path, items: Sequence[dict[str, Any]]) -> Path:
    """A JSONL file."""
    lines = (json.dumps(item, ensure_ascii=False) for item in items)
    path.write_text("".join(f"{line}\n" for line in lines), "utf-8")
    return path


def choosing(path: Path, number: int = 9) -> Path:
    """Questions with choices, in two domains, of different lengths."""
    items = [
        {
            "id": f"问-{n}",
            "domain": ("größe", "math")[n % 2],
            "question": f"What is {n} and {n * n}? " + "Think. " * (n % 4),
            "choices": [f"it is {n + c}" + "!" * c for c in range(2 + n % 3)],
            "answer": n % 2,
        }
        for n in range(number)
    ]
    return rows(path, items)


def writing(path: Path, number: int = 7) -> Path:
    """Questions whose answer is written."""
    items = [
        {"id": f"w{n}", "prompt": f"{n} plus {n} " * (1 + n % 3) + "is", "answer": str(2 * n)}
        for n in range(number)
    ]
    return rows(path, items)


def every_kind(folder: Path, number: int = 7) -> list[str]:
    """Task files: letters with a shot, cloze, generate, degeneration; a folder that is there."""
    choosing(folder / "choosing.jsonl", number)
    choosing(folder / "shots.jsonl", 4)
    writing(folder / "writing.jsonl", number)
    stated = "chat_template = false\n"
    for name, text in {
        "letters": 'kind = "letters"\nquestions = "choosing.jsonl"\nshots_from = "shots.jsonl"\n'
        "shots = 1\n",
        "cloze": 'kind = "cloze"\nquestions = "choosing.jsonl"\n',
        "generate": 'kind = "generate"\nquestions = "writing.jsonl"\nmax_new_tokens = 6\n'
        'stop = ["\\n"]\n',
        "degeneration": 'kind = "degeneration"\nquestions = "writing.jsonl"\nmax_new_tokens = 24\n',
    }.items():
        (folder / f"{name}.toml").write_text(f'schema = "moeprune.task/1"\n{text}{stated}', "utf-8")
    return [str(folder / f"{name}.toml") for name in KINDS[:4]]


def text(path: Path) -> str:
    """A text for perplexity, longer than a window of 50."""
    return str(rows(path, [{"text": f"{n} und {n * n}, größer als {n}. " * 3} for n in range(5)]))
