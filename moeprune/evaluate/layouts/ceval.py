"""C-Eval (Huang et al. 2023, arXiv 2305.08322), as ceval/ceval-exam has it, a config a subject.

Columns ``id``, ``question``, ``A``, ``B``, ``C``, ``D``, ``answer`` (a letter), ``explanation``.
The labels of the test split are withheld: ask the val split, with the dev split as shots.

Asked as in the paper: five solved questions of the same subject, then the letters' logits are
compared, with nothing between 答案： and the letter. The subject is the config's name; the paper's
prompt names it in Chinese, which ``--questions 法学=hf:ceval/ceval-exam/law:val`` and a
``description`` with ``{domain}`` give.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moeprune.evaluate.layouts._columns import place, text, with_keys

QUESTIONS = "hf:ceval/ceval-exam/{SUBJECT}:val"
SHOTS = "hf:ceval/ceval-exam/{SUBJECT}:dev"
PROTOCOL: Mapping[str, Any] = {
    "kind": "letters",
    "description": "以下是中国考试的单项选择题，请选出其中的正确答案。\n\n",
    "question": "{question}\n{options}\n答案：",
    "option": "{letter}. {choice}",
    "delimiter": "",
    "shots": 5,
}


def convert(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """A question, its explanation left out.

    Raises:
        UsageError: a column is missing or holds something else, or the label is withheld.
    """
    return {
        "id": with_keys(row, ["id"]).get("id", str(number)),
        "question": text(row, "question").strip(),
        "choices": [text(row, letter) for letter in "ABCD"],
        "answer": place(row, "answer", of=4),
    }
