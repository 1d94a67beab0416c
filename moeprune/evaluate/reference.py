"""The text that candidates are judged on, and what the full model says about it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from moeprune.core.progress import OnProgress, Progress
from moeprune.errors import DomainError
from moeprune.evaluate.nucleus import Nuclei, nuclei
from moeprune.evaluate.passes import Passes, TokenBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """Batches of all domains in a row.

    Attributes:
        batches: (B,) the batches.
        domain_B: index of each batch's domain.
        tokens_D: tokens of each domain; every one is a scored position.
    """

    batches: tuple[TokenBatch, ...]
    domain_B: tuple[int, ...]
    tokens_D: tuple[int, ...]


def flat(batches: Mapping[str, Sequence[TokenBatch]]) -> Text:
    """The batches of all domains in a row.

    Raises:
        DomainError: no domain, or one without a token.
    """
    if not batches:
        raise DomainError("there is no held-out text to judge by; name at least one domain.")
    rows: list[TokenBatch] = []
    domain_B: list[int] = []
    tokens_D = []
    for number, (name, own) in enumerate(batches.items()):
        tokens = sum(int(batch.mask_BS.sum()) for batch in own)
        if tokens == 0:
            raise DomainError(f"domain {name!r} has no held-out token; give it more text.")
        for batch in own:
            assert batch.ids_BS.shape == batch.mask_BS.shape
            # A causal model is not disturbed by what stands on the right of a token.
            assert batch.mask_BS[:, 0].all() and (np.diff(batch.mask_BS, axis=1) <= 0).all()
        rows += own
        domain_B += [number] * len(own)
        tokens_D.append(tokens)
    return Text(batches=tuple(rows), domain_B=tuple(domain_B), tokens_D=tuple(tokens_D))


def reference(
    passes: Passes, text: Text, *, top_p: float, on_progress: OnProgress
) -> list[tuple[Nuclei, ...]]:
    """Nuclei of the full model: a tuple for each batch, an entry for each part of its logits."""
    kept = []
    done, total = 0, sum(text.tokens_D)
    with passes.open():
        passes.mask(None, start=0)
        for batch in text.batches:
            on_progress(Progress("full model", done, total, "tokens"))
            kept.append(tuple(nuclei(logits, top_p=top_p) for logits in passes.logits(batch)))
            done += int(batch.mask_BS.sum())
    on_progress(Progress("full model", done, total, "tokens"))
    return kept
