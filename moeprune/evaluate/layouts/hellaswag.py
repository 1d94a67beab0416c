"""HellaSwag (Zellers et al. 2019, arXiv 1905.07830), as Rowan/hellaswag has it.

Columns ``activity_label``, ``ctx_a``, ``ctx_b``, ``endings`` (four), ``label`` (a text; withheld in
the test split), ``source_id`` (``activitynet~…`` or ``wikihow~…``).

Asked as lm-evaluation-harness does: the likelihood of each ending, without shots, after the marks
that WikiHow leaves in brackets are taken out; ``acc_norm`` is the figure that is quoted.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from moeprune.evaluate.layouts._columns import cloze, place, text, texts, with_keys

QUESTIONS = "hf:Rowan/hellaswag:validation"
SHOTS = "hf:Rowan/hellaswag:train"
PROTOCOL = cloze("{question}")

_MARK = re.compile(r"\[[^\n]*?\]")


def convert(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A question; its domain is where it was taken from.

    Raises:
        UsageError: a column is missing or holds something else, or the label is withheld.
    """
    endings = [_clean(ending) for ending in texts(row, "endings")]
    # The second half of the context begins a sentence. That capitalize() makes its other letters
    # small is how the figures that papers quote were measured.
    context = f"{text(row, 'ctx_a')} {text(row, 'ctx_b').capitalize()}"
    source = with_keys(row, ["source_id"]).get("source_id", "").partition("~")
    return {
        "id": str(number),
        **({"domain": source[0]} if source[1] else {}),
        "question": _clean(f"{text(row, 'activity_label')}: {context}"),
        "choices": endings,
        "answer": place(row, "label", of=len(endings)),
    }


def _clean(marked: str) -> str:
    """Without marks in brackets: a title ends a sentence, any other stands for nothing."""
    plain = _MARK.sub("", marked.strip().replace(" [title]", ". "))
    return plain.replace("  ", " ")
