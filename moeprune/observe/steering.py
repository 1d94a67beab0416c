"""What is added to transformers' own way of writing: stop texts, and draws that have names."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

from moeprune.observe.decoding import Decoding


@dataclass(frozen=True, slots=True, kw_only=True)
class Steering:
    """Of one batch.

    Attributes:
        stopping: ends rows at stop texts; None: there are none.
        ties: notes tokens that rounding could have chosen; None: nobody asks.
        told: what transformers is told of it.
    """

    stopping: Any = None
    ties: Any = None
    told: dict[str, Any] = field(default_factory=dict)


def steered(
    how: Decoding,
    names: Sequence[str] | None,
    tokenizer: Any,
    *,
    rows: int,
    width: int,
    exact: bool,
) -> Steering:
    """What steers a batch.

    Args:
        how: tokens are chosen.
        names: of the draws of each row; None: they have none, and what a batch does is no matter.
        tokenizer: of the model.
        rows: of the batch.
        width: of its prompts, padding included.
        exact: the model computes in a type whose rounding hardly ever chooses a token.
    """
    if not how.stop and names is None:
        return Steering()
    from transformers import LogitsProcessorList, StoppingCriteriaList

    from moeprune.observe.near_ties import NearTies
    from moeprune.observe.paired_draws import PairedDraws
    from moeprune.observe.stop_texts import StopTexts

    stopping = draws = ties = None
    told: dict[str, Any] = {}
    if how.stop:
        stopping = StopTexts(tokenizer, how.stop, rows=rows, width=width)
        told["stopping_criteria"] = StoppingCriteriaList([stopping])
    if names is not None and how.do_sample:
        draws = PairedDraws(names, temperature=how.temperature, width=width)
    if names is not None and rows > 1 and exact:
        ties = NearTies(draws, temperature=how.temperature, width=width)
    if ties is not None or draws is not None:
        told["logits_processor"] = LogitsProcessorList([ties or draws])
    return Steering(stopping=stopping, ties=ties, told=told)
