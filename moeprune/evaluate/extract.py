"""The answer in what a model wrote, and whether it is right.

========================  =========================================================
``exact``                 all of it, without white space around
``last-number``           the last number; that of a line ``#### 42`` goes before
``letter``                the letter of a choice, see :mod:`moeprune.evaluate.stated_letter`
``regex:PATTERN``         the first group (or all) of the last match that is not blank
========================  =========================================================

What a model wrote for itself first (``<think>…</think>``) is not looked at, see
:mod:`moeprune.evaluate.thought`.
"""

from __future__ import annotations

import re
from collections.abc import Sequence

from moeprune.core.tasks import Protocol
from moeprune.errors import UsageError
from moeprune.evaluate.numbers_written import last_number, value_of
from moeprune.evaluate.stated_letter import stated_letter
from moeprune.evaluate.thought import answer_part
from moeprune.plugins import known

EXACT = "exact"
LAST_NUMBER = "last-number"
LETTER = "letter"
REGEX = "regex:"


def check_rule(rule: str) -> None:
    """Check that there is such a rule.

    Raises:
        UsageError: there is not, or its pattern is none.
    """
    if rule.startswith(REGEX):
        _pattern(rule)
    else:
        known(rule, (EXACT, LAST_NUMBER, LETTER, f"{REGEX}PATTERN"), kind="rule of extraction")


def extract(text: str, rule: str) -> str | None:
    """The answer in ``text``; None where the rule finds none.

    Args:
        text: what the model wrote.
        rule: ``exact``, ``last-number``, ``letter`` or ``regex:PATTERN``.

    Raises:
        UsageError: there is no such rule, or its pattern is none.
    """
    text = answer_part(text)
    if rule == LAST_NUMBER:
        return last_number(text)
    if rule == LETTER:
        return stated_letter(text)
    if rule.startswith(REGEX):
        found = None
        for match in _pattern(rule).finditer(text):
            group = (match[1] if match.re.groups else match[0]) or ""
            found = group.strip() or found  # "(.*)" also matches nothing at the end
        return found
    check_rule(rule)
    return text.strip() or None


def same(prediction: str | None, answers: Sequence[str], protocol: Protocol) -> bool:
    """Whether a prediction is one of the right answers.

    Under ``last-number`` numbers are compared by value (``1,200.0`` is ``1200``, ``3/4`` is
    ``0.75``), otherwise texts without the white space around them, and letters of either case are
    the same where the protocol says so, or where the answer is the letter of a choice.

    Args:
        prediction: as :func:`extract` found it; None is never right.
        answers: any of which is right; a worked solution that ends in its number, too.
        protocol: with the rule by which the prediction was found.
    """
    if prediction is None:
        return False
    if protocol.extract == LAST_NUMBER:
        value = value_of(prediction)
        for answer in answers:
            due = last_number(answer)
            if value is not None and due is not None and value == value_of(due):
                return True
        return False
    fold = protocol.ignore_case or protocol.extract == LETTER
    said = _folded(prediction, fold)
    return any(said == _folded(answer, fold) for answer in answers)


def _folded(text: str, fold: bool) -> str:
    return text.strip().casefold() if fold else text.strip()


def _pattern(rule: str) -> re.Pattern[str]:
    pattern = rule.removeprefix(REGEX)
    try:
        found = re.compile(pattern)
    except (re.error, RecursionError, OverflowError) as problem:
        said = str(problem) or "nested too deep"
        raise UsageError(f"{rule!r} is no pattern of Python's re ({said}). Correct it.") from None
    if not pattern:
        raise UsageError(f"{rule!r} names no pattern. Write for example 'regex:Answer: (.+)'.")
    return found
