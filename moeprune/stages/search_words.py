"""What can be asked of ``plan`` for a search alone, and the preset for a first look."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, TypedDict

from moeprune.core.methods import EVOLVED, Method
from moeprune.errors import UsageError

NUMBERS = ("generations", "population", "elites", "delta", "mutations")
QUICK = {"generations": 10, "population": 16, "search_samples": 4}


class SearchWords(TypedDict, total=False):
    """Keyword arguments of ``plan`` that only a search has; what is left out is the default.

    Attributes:
        model: folder or Hub id of the model that the stats are of.
        search_text: name -> source, or ``NAME=SOURCE`` texts, to judge plans by; None: what
            calibration left of the built-in domains.
        search_samples: documents a domain; None = 16.
        search_length: tokens of a document; None = as calibrated.
        generations: how long to search; None = 50; 0 = not at all.
        population: plans of a generation; None = 32.
        elites: plans that survive a generation; None = 4.
        delta: the most units of experts that move at once; None = 4.
        mutations: the most moves from parent to child; None = 3.
        quick: defaults for a first look: see ``QUICK``.
        objective: ``"mean"`` (None) over domains, or ``"worst-domain"``.
        top_p: share of the full model's probability mass that is compared; None = 0.999.
        cache: memory for hidden states, e.g. ``"8GB"``; None = 4 GiB.
        search_batch_tokens: tokens of one forward pass, padding included; None = 2048.
        dtype: number type of the model; None = as stored.
        device: where to run; None = a GPU where there is one.
        trust_remote_code: run code that comes with the checkpoint.
        revision: of a Hub model.
        state: where to save every generation; None = beside the plan, if that is written.
    """

    model: str | Path | None
    search_text: Mapping[str, str] | Sequence[str] | None
    search_samples: int | None
    search_length: int | None
    generations: int | None
    population: int | None
    elites: int | None
    delta: int | None
    mutations: int | None
    quick: bool
    objective: str | None
    top_p: float | None
    cache: str | int | None
    search_batch_tokens: int | None
    dtype: str | None
    device: str | None
    trust_remote_code: bool
    revision: str | None
    state: str | Path | None


def given_words(
    words: SearchWords, *, method: str, chosen: Method, allocation: str | None
) -> dict[str, Any]:
    """What was really asked for, with the preset's numbers.

    Args:
        words: all of them.
        method: what the method is called, for messages.
        chosen: its parts.
        allocation: what was asked for, which a search decides itself.

    Raises:
        UsageError: something that the method does not have.
    """
    given = {
        name: value
        for name, value in words.items()
        if value is not None and value is not False and value != ()
    }
    if chosen.allocation != EVOLVED:
        for name in given:
            raise UsageError(
                f"--{name.replace('_', '-')} does not go with --method {method}, which plans from "
                "the stats alone. Leave it out, or use --method evoesap."
            )
    elif allocation is not None:
        raise UsageError(
            f"--allocation {allocation} does not go with --method {method}, which finds the number "
            "of experts of each layer itself. Leave --allocation out."
        )
    return {**QUICK, **given} if "quick" in given else given
