"""Tokens are drawn, and nobody asked for that.

Lesson 10 of the paper: generation configs default to sampling. Our tasks are greedy unless they
state a temperature, whatever the checkpoint's generation config says; a task of lm-eval may draw by
its own YAML, and then one run of it is one draw.
"""

from __future__ import annotations

from collections.abc import Iterator

from moeprune.core.guard import STOP, Finding, Setting


def before(setting: Setting) -> Iterator[Finding]:
    """Tasks of lm-eval that draw tokens where no temperature was asked for."""
    for name, entry in setting.harness.items():
        asked = entry["protocol"]["generation"]
        if "temperature" in asked or "do_sample" in asked:
            continue
        for part, facts in entry["protocol"]["parts"].items():
            if facts["draws"]:
                yield Finding(
                    name="implicit-sampling",
                    level=STOP,
                    task=name,
                    text=(
                        f"task {part!r} of lm-eval draws its tokens by its own YAML. Pass "
                        "--temperature 0, or the temperature that is meant."
                    ),
                )
