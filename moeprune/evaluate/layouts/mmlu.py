"""MMLU (Hendrycks et al. 2021, arXiv 2009.03300), as cais/mmlu has it.

Columns ``question``, ``subject``, ``choices`` (four), ``answer`` (0 to 3).

Asked as in the paper: five solved questions of the same subject (the dev split), then the letters'
logits are compared. Asked without shots, by the likelihood of the choices' texts, the same model
answered 53 % right instead of 82 % ("Halving activated experts", section 9).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeprune.evaluate.layouts._columns import place, text, texts

QUESTIONS = "hf:cais/mmlu/all:test"
SHOTS = "hf:cais/mmlu/all:dev"
PROTOCOL: Mapping[str, Any] = {
    "kind": "letters",
    "description": "The following are multiple choice questions (with answers) about {domain}.\n\n",
    "question": "{question}\n{options}\nAnswer:",
    "option": "{letter}. {choice}",
    "delimiter": " ",
    "shots": 5,
}


def convert(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A question; its domain is the subject, with spaces.

    Raises:
        UsageError: a column is missing or holds something else.
    """
    choices = texts(row, "choices")
    return {
        "id": str(number),
        "domain": text(row, "subject").replace("_", " "),
        "question": text(row, "question").strip(),
        "choices": choices,
        "answer": place(row, "answer", of=len(choices)),
    }
