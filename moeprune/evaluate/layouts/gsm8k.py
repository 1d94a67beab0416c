r"""GSM8K (Cobbe et al. 2021, arXiv 2110.14168), as openai/gsm8k has it.

Columns ``question`` and ``answer``: a worked solution whose last line is ``#### `` and the number.

Asked as a chat model is used, and as in "Halving activated experts", section 5: no shots, greedy,
the last number that was written is the answer. The budget is 1,024 tokens, since with 512 that
paper first measured truncation, not arithmetic (section 9). For a base model state
``question = "Question: {question}\nAnswer:"``, ``shots = 5`` and ``stop = ["Question:"]``, with
the train split as shots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeprune.errors import UsageError
from moeprune.evaluate.layouts._columns import text

QUESTIONS = "hf:openai/gsm8k/main:test"
SHOTS = "hf:openai/gsm8k/main:train"
PROTOCOL: Mapping[str, Any] = {
    "kind": "generate",
    "question": (
        "{question}\n\nThink step by step. End with a line that holds nothing but #### and the "
        "answer as a number."
    ),
    "delimiter": " ",
    "shots": 0,
    "max_new_tokens": 1024,
    "extract": "last-number",
}


def convert(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A question; shots show the whole solution.

    Raises:
        UsageError: a column is missing, or the solution has no final number.
    """
    solution = text(row, "answer")
    final = solution.rpartition("####")[2].strip()
    if "####" not in solution or not final:
        raise UsageError(f"column 'answer' has no number after ####: {solution[-40:]!r}")
    return {
        "id": str(number),
        "question": text(row, "question"),
        "answer": final,
        "solution": solution,
    }
