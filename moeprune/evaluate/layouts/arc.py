"""ARC (Clark et al. 2018, arXiv 1803.05457), as allenai/ai2_arc has it: Challenge or Easy.

Columns ``id``, ``question``, ``choices`` (``text`` and ``label``: A to E, or 1 to 5; three to five
of them), ``answerKey``.

Asked as lm-evaluation-harness does, whose figures most papers state: the likelihood of each
choice's text, without shots; ``acc_norm`` is the figure that is quoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeprune.evaluate.layouts._columns import cloze, labels, text

QUESTIONS = "hf:allenai/ai2_arc/ARC-Challenge:test"
SHOTS = "hf:allenai/ai2_arc/ARC-Challenge:train"
PROTOCOL = cloze("Question: {question}\nAnswer:")


def convert(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A question.

    Raises:
        UsageError: a column is missing or holds something else.
    """
    choices, right = labels(row)
    return {
        "id": text(row, "id"),
        "question": text(row, "question"),
        "choices": choices,
        "answer": right,
    }
