"""All guards in one call, in the order of their names."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from moeprune import plugins
from moeprune.core.guard import Answered, Finding, Setting
from moeprune.evaluate import guards


def before(setting: Setting) -> tuple[Finding, ...]:
    """What the guards say before a question is asked."""
    return _all("before", setting)


def after(answered: Answered) -> tuple[Finding, ...]:
    """What the guards say of the answers."""
    return _all("after", answered)


def in_all(early: Iterable[Finding], late: Iterable[Finding]) -> tuple[Finding, ...]:
    """What is to be recorded: a guard that speaks of the answers, too, knows better by then.

    Args:
        early: from :func:`before`.
        late: from :func:`after`.
    """
    again = {name for name in plugins.names(guards) if hasattr(plugins.load(guards, name), "after")}
    return (*(finding for finding in early if finding.name not in again), *late)


def _all(function: str, seen: Any) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for name in plugins.names(guards):
        check = getattr(plugins.load(guards, name), function, None)
        found += check(seen) if check else ()
    return tuple(found)
