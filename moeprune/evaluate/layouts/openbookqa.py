"""OpenBookQA (Mihaylov et al. 2018, arXiv 1809.02789), as allenai/openbookqa has it.

Columns ``id``, ``question_stem``, ``choices`` (``text`` and ``label``), ``answerKey``.

Asked as lm-evaluation-harness does: the likelihood of each choice's text after the stem, without
shots and without the book's facts; ``acc_norm`` is the figure that is quoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeprune.evaluate.layouts._columns import cloze, labels, text

QUESTIONS = "hf:allenai/openbookqa/main:test"
SHOTS = "hf:allenai/openbookqa/main:train"
PROTOCOL = cloze("{question}")


def convert(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A question.

    Raises:
        UsageError: a column is missing or holds something else.
    """
    choices, right = labels(row)
    return {
        "id": text(row, "id"),
        "question": text(row, "question_stem"),
        "choices": choices,
        "answer": right,
    }
