"""All guards in one call, in the order of their names."""

from __future__ import annotations

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


def _all(function: str, seen: Any) -> tuple[Finding, ...]:
    found: list[Finding] = []
    for name in plugins.names(guards):
        check = getattr(plugins.load(guards, name), function, None)
        found += check(seen) if check else ()
    return tuple(found)
