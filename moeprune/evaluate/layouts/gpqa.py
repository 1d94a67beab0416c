"""GPQA (Rein et al. 2023, arXiv 2311.12022), as Idavidrein/gpqa has it (it asks you to log in).

Columns ``Question``, ``Correct Answer``, ``Incorrect Answer 1`` to ``3``, ``Record ID``,
``Subdomain``.

The right answer has a column of its own, so the choices are put in an order drawn by a hash of the
question: the same for every model and every run. Asked for a written answer with its reasoning,
ending in a letter, since comparing letters at once leaves most models near chance; 4,096 tokens
hold the reasoning of a model that does not think at length.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeprune.artefact import sha256_bytes
from moeprune.evaluate.layouts._columns import text, with_keys

QUESTIONS = "hf:Idavidrein/gpqa/gpqa_diamond:train"
SHOTS = ""  # there is one split only
PROTOCOL: Mapping[str, Any] = {
    "kind": "generate",
    "question": (
        "{question}\n\n{options}\n\nThink step by step. End with a line that reads 'The answer is "
        "X.', where X is one of the letters."
    ),
    "option": "{letter}. {choice}",
    "delimiter": "\n\n",
    "shots": 0,
    "max_new_tokens": 4096,
    "extract": "letter",
}

_COLUMNS = ("Correct Answer", "Incorrect Answer 1", "Incorrect Answer 2", "Incorrect Answer 3")


def convert(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A question; its domain is the subdomain.

    Raises:
        UsageError: a column is missing or holds something else.
    """
    question = text(row, "Question").strip()
    answers = [text(row, column).strip() for column in _COLUMNS]
    order = sorted(range(4), key=lambda at: _rank(question, at))
    have = with_keys(row, ["Record ID", "Subdomain"])
    return {
        "id": have.get("Record ID", str(number)),
        **({"domain": have["Subdomain"]} if "Subdomain" in have else {}),
        "question": question,
        "choices": [answers[at] for at in order],
        "answer": order.index(0),
    }


def _rank(question: str, at: int) -> str:
    return sha256_bytes(f"{question}\n{at}".encode("utf-8", "replace"))
