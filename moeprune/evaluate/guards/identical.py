"""A variant with experts removed computes what the base computes: nothing was patched.

Lesson 9 of the paper: accelerate shadows the forward of a class, so a patch of the class is called
zero times, and every point of a scan equals the baseline. It was noticed because "k = 2 has the
same loss as the baseline" was impossible.
"""

from __future__ import annotations

from collections.abc import Iterator

from moeprune.core.guard import WARN, Answered, Finding


def after(answered: Answered) -> Iterator[Finding]:
    """Variants whose probe has the base's logits, bit by bit, though another plan was applied."""
    base = answered.base
    if not base.probe.get("logits"):
        return
    own = base.variant.get("plan") or {}
    for variant in answered.variants:
        plan = variant.variant.get("plan") or {}
        other = plan.get("removed") and plan.get("sha256") != own.get("sha256")
        if other and dict(variant.probe) == dict(base.probe):
            yield Finding(
                name="identical",
                level=WARN,
                task="",
                text=(
                    f"{variant.name} has the logits of {base.name}, bit by bit, though its plan "
                    f"removes {plan['removed']} experts: nothing was patched, or no token of the "
                    "probe visits them. Do not trust its answers if they are the same, too."
                ),
            )
