"""Findings of protocol guards: one line each, and one that stops is raised."""

import pytest

from moeprune.core.guard import STOP, WARN, Finding, refuse
from moeprune.errors import UsageError


def finding(level: str, text: str = "the base answers as if it guessed.") -> Finding:
    return Finding(name="near-chance", level=level, task="mmlu", text=text)


def test_a_finding_is_plain_json() -> None:
    assert finding(WARN).to_json() == {
        "name": "near-chance",
        "level": "warn",
        "task": "mmlu",
        "text": "the base answers as if it guessed.",
    }


@pytest.mark.parametrize(("level", "text"), [("note", "x"), (WARN, ""), (WARN, "a\nb")])
def test_a_finding_is_one_line_of_a_known_level(level: str, text: str) -> None:
    with pytest.raises(AssertionError):
        finding(level, text)


def test_warnings_do_not_stop() -> None:
    refuse((finding(WARN), finding(WARN)))
    refuse(())


def test_the_first_that_stops_is_raised_and_the_others_counted() -> None:
    with pytest.raises(UsageError, match=r"^first\.$"):
        refuse((finding(WARN), finding(STOP, "first.")))
    with pytest.raises(UsageError, match=r"^first\. \(2 more of this kind\.\)$"):
        refuse((finding(STOP, "first."), finding(STOP, "second."), finding(STOP, "third.")))
