"""PIQA (Bisk et al. 2020, arXiv 1911.11641), as baber/piqa has it (ybisk/piqa needs code to load).

Columns ``goal``, ``sol1``, ``sol2``, ``label`` (0 or 1; -1 where it is withheld).

Asked as lm-evaluation-harness does: the likelihood of each solution, without shots; ``acc_norm`` is
the figure that is quoted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeprune.evaluate.layouts._columns import cloze, place, text

QUESTIONS = "hf:baber/piqa:validation"
SHOTS = "hf:baber/piqa:train"
PROTOCOL = cloze("Question: {question}\nAnswer:")


def convert(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A question.

    Raises:
        UsageError: a column is missing or holds something else, or the label is withheld.
    """
    return {
        "id": str(number),
        "question": text(row, "goal"),
        "choices": [text(row, "sol1"), text(row, "sol2")],
        "answer": place(row, "label", of=2),
    }
