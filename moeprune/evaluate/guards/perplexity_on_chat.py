"""Perplexity of bare text, of a model that was trained to chat.

Lesson 6 of the paper: an instruction-tuned Gemma has a perplexity of 573 on WikiText under bare
completion, its base model 9.6. Lesson 3: perplexity and accuracy can say opposite things.
"""

from __future__ import annotations

from collections.abc import Iterator

from moeprune.core.guard import WARN, Finding, Setting

_ROLLING = "loglikelihood_rolling"


def before(setting: Setting) -> Iterator[Finding]:
    """Texts read as they are, where the tokenizer has a chat template."""
    if not setting.has_template:
        return
    names = list(setting.corpora)
    for name, entry in setting.harness.items():
        parts = entry["protocol"]["parts"].values()
        if any(part["output_type"] == _ROLLING for part in parts):
            names.append(name)
    for name in names:
        yield Finding(
            name="perplexity-on-chat",
            level=WARN,
            task=name,
            text=(
                f"{name}: the perplexity of bare text says little of a model whose tokenizer has "
                "a chat template. Compare variants of this model by it, no other models, and "
                "believe the questions where they disagree."
            ),
        )
