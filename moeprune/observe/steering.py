"""What is added to transformers' own way of writing: stop texts, and draws that have names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from moeprune.observe.decoding import Decoding


def steered(
    how: Decoding, names: Sequence[str] | None, tokenizer: Any, *, rows: int, width: int
) -> tuple[Any, dict[str, Any]]:
    """What ends rows at stop texts, or None, and what transformers is told of it and of draws.

    Args:
        how: tokens are chosen.
        names: of the draws of each row; None: they have none.
        tokenizer: of the model.
        rows: of the batch.
        width: of its prompts, padding included.
    """
    if not how.stop and (names is None or not how.do_sample):
        return None, {}
    from transformers import LogitsProcessorList, StoppingCriteriaList

    from moeprune.observe.paired_draws import PairedDraws
    from moeprune.observe.stop_texts import StopTexts

    stopping, told = None, {}
    if how.stop:
        stopping = StopTexts(tokenizer, how.stop, rows=rows, width=width)
        told["stopping_criteria"] = StoppingCriteriaList([stopping])
    if names is not None and how.do_sample:
        draws = PairedDraws(names, temperature=how.temperature, width=width)
        told["logits_processor"] = LogitsProcessorList([draws])
    return stopping, told
