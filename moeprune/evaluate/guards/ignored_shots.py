"""Shots were asked for, and a task of lm-eval keeps its zero.

lm-eval never gives shots to a task whose YAML states 0 of them, and says so in its log only.
"""

from __future__ import annotations

from collections.abc import Iterator

from moeprune.core.guard import WARN, Finding, Setting


def before(setting: Setting) -> Iterator[Finding]:
    """Tasks of lm-eval asked with another number of shots than was asked for."""
    for name, entry in setting.harness.items():
        asked = entry["protocol"]["shots"]
        parts = entry["protocol"]["parts"]
        kept = [part for part, facts in parts.items() if asked and facts["shots"] != asked]
        if kept:
            yield Finding(
                name="ignored-shots",
                level=WARN,
                task=name,
                text=(
                    f"task {kept[0]!r} of lm-eval states 0 shots in its YAML, and keeps them: "
                    f"--shots {asked} is not for it. Leave --shots out, or name another task."
                ),
            )
