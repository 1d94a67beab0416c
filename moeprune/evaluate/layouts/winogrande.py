"""WinoGrande (Sakaguchi et al. 2019, arXiv 1907.10641), as allenai/winogrande has it.

Columns ``sentence`` with one ``_``, ``option1``, ``option2``, ``answer`` (1 or 2; withheld in the
test split).

Asked as lm-evaluation-harness does, after Trinh and Le (arXiv 1806.02847): each option is put in
the blank, and the likelihood of what follows it is compared, without shots.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeprune.errors import UsageError
from moeprune.evaluate.layouts._columns import cloze, place, text

QUESTIONS = "hf:allenai/winogrande/winogrande_xl:validation"
SHOTS = "hf:allenai/winogrande/winogrande_xl:train"
PROTOCOL = cloze("{question}")


def convert(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A question: one context an option, and what follows the blank.

    Raises:
        UsageError: a column is missing or holds something else, the label is withheld, or nothing
            follows a blank.
    """
    sentence = text(row, "sentence")
    before, blank, after = sentence.partition("_")
    if not blank or not after.strip():
        raise UsageError(f"column 'sentence' has no _ with something after it: {sentence!r:.80}")
    options = [text(row, "option1"), text(row, "option2")]
    return {
        "id": str(number),
        "contexts": [f"{before}{option}" for option in options],
        "choices": options,
        "continuation": after.strip(),
        "answer": place(row, "answer", of=2, first=1),
    }
