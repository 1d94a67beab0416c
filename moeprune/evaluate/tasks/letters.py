"""Letters of choices."""

from __future__ import annotations

import string

from moeprune.core.tasks import Question

LETTERS = string.ascii_uppercase


def letters_of(question: Question) -> str:
    """One letter a choice."""
    return LETTERS[: len(question.choices)]
