"""ESAP: what share of the full model's tokens would a model without some experts accept.

Expected speculative acceptance (EvoESAP, arXiv 2603.06003): the mean over the positions t of
held-out text of Σ_v min(p(v | t), q(v | t)), p of the full model, q of the candidate, both reading
the text itself (teacher forcing). It is 1 − the total variation distance, averaged; 1 means that
nothing changed. Padding is never counted, and domains are averaged before they are compared.

A candidate is the full model with routers masked, so no weight moves. Three things make it cheaper
and change no bit of the result: layers before the first one that no evaluated genome shares are
left out, a genome that cannot reach what is asked for is given up, and what ran once is remembered.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import nn

from moeprune.core.fitness import Counts
from moeprune.core.progress import OnProgress, ignore
from moeprune.errors import UsageError
from moeprune.evaluate.bound import MEAN, OBJECTIVES, Ledger, race
from moeprune.evaluate.nucleus import accepted
from moeprune.evaluate.passes import Masking, Passes, Rows, TokenBatch
from moeprune.evaluate.reference import flat, reference
from moeprune.evaluate.replay import Replay
from moeprune.evaluate.selfcheck import check_reuse
from moeprune.evaluate.states import State, StateCache
from moeprune.plugins import known

TOP_P = 0.999
CACHE_BYTES = 4 << 30
LOGITS_BYTES = 512 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class EsapReport:
    """What stands behind the values.

    Attributes:
        tokens: domain -> scored positions.
        dropped: domain -> mean probability mass per position that ``top_p`` dropped: what ESAP can
            be too small by, at most.
        reference_bytes: memory that the full model's kept probabilities take.
        reuse: whether passes begin at the first changed layer.
        in_parts: whether logits are made in parts.
        reason: why one of them is not done, or "".
    """

    tokens: Mapping[str, int]
    dropped: Mapping[str, float]
    reference_bytes: int
    reuse: bool
    in_parts: bool
    reason: str


class Esap:
    """ESAP of genomes of one model: a :class:`moeprune.core.fitness.Fitness`.

    Attributes:
        layer_forwards: decoder layers run for genomes so far; one layer on one batch counts 1. The
            full model's own pass and the self-check are not counted.
        layer_forwards_naive: what running each different genome through all layers on all batches
            would have cost.
        report: what stands behind the values.
        cache: the hidden states that are kept.
    """

    def __init__(
        self,
        model: Any,
        *,
        layers: Sequence[nn.Module],
        layer_of_row: Sequence[int],
        order: Sequence[Sequence[int]],
        batches: Mapping[str, Sequence[TokenBatch]],
        masking: Masking,
        objective: str = MEAN,
        top_p: float = TOP_P,
        cache_bytes: int = CACHE_BYTES,
        logits_bytes: int = LOGITS_BYTES,
        reuse: bool = True,
        on_progress: OnProgress = ignore,
    ) -> None:
        """Run the full model over the text and try whether its layers may be left out.

        Args:
            model: a causal language model in evaluation mode; it is left as it was.
            layers: its decoder layers in order.
            layer_of_row: (L,) the number of the decoder layer of each MoE row, never falling.
            order: (L,) expert ids of each row in the order in which they leave; those that never
                leave need not be named.
            batches: domain -> held-out text; the objective is over these domains.
            masking: given the removed ids of every row, a block in which no router chooses them.
            objective: of ``OBJECTIVES``.
            top_p: share of the full model's probability mass that is kept at every position.
            cache_bytes: memory for hidden states; what does not fit is computed again.
            logits_bytes: memory for logits and what is made of them, at a time. Where the model
                cannot make them in parts, those of a whole batch are made.
            reuse: False: run every layer for every genome.
            on_progress: told of the full model's pass.

        Raises:
            UsageError: a number is out of range, or a batch does not fit the GPU's memory.
            DomainError: no text.
            VerificationError: a router's choice cannot be masked.
        """
        known(objective, OBJECTIVES, kind="objective")
        if not 0 < top_p <= 1:  # also refuses NaN
            raise UsageError(f"--top-p {top_p} is not a share of probability; use 0.999, or 1.")
        if cache_bytes < 0:
            raise UsageError(f"--cache {cache_bytes} is not a number of bytes from 0 up.")
        assert list(layer_of_row) == sorted(layer_of_row) and len(order) == len(layer_of_row)
        text = flat(batches)
        self._batches = text.batches
        self._rows = Rows(layer_L=tuple(layer_of_row), order_L=tuple(tuple(ids) for ids in order))
        self._passes = Passes(
            model,
            replay=Replay(layers),
            rows=self._rows,
            masking=masking,
            logits_bytes=logits_bytes,
        )
        # A pass may begin with any layer that holds a row, unless it is the first of all.
        self._starts = tuple(layer for layer in sorted(set(layer_of_row)) if layer > 0)
        found = check_reuse(
            self._passes,
            self._batches[0],
            counts=tuple(min(1, len(ids)) for ids in order),
            starts=self._starts,
        )
        self._depth = found.depth
        self._passes.in_parts = found.in_parts
        self._reuse = reuse and found.reuse
        self.cache = StateCache(
            cache_bytes,
            lengths=[sum(row < start for row in layer_of_row) for start in self._starts],
        )
        self._kept = reference(self._passes, text, top_p=top_p, on_progress=on_progress)
        self._ledger = Ledger(
            domain_B=text.domain_B,
            mass_B=tuple(math.fsum(part.mass for part in parts) for parts in self._kept),
            tokens_D=text.tokens_D,
            objective=objective,
        )
        self._order: tuple[int, ...] = tuple(range(len(self._batches)))
        self._ordered = False
        self._sums: dict[Counts, dict[int, float]] = {}
        self.layer_forwards = 0
        self.layer_forwards_naive = 0
        mass_D = self._ledger.by_domain(self._ledger.mass_B)
        self.report = EsapReport(
            tokens=dict(zip(batches, text.tokens_D, strict=True)),
            dropped={name: max(0.0, 1 - mass) for name, mass in zip(batches, mass_D, strict=True)},
            reference_bytes=sum(part.nbytes for parts in self._kept for part in parts),
            reuse=self._reuse,
            in_parts=found.in_parts,
            reason=found.reason,
        )

    def score(
        self, counts: Counts, *, parent: Counts | None = None, at_least: float = -math.inf
    ) -> float | None:
        """ESAP of the model without ``counts[row]`` experts of each row.

        Args:
            counts: the genome.
            parent: not needed: states are found by what a genome begins with.
            at_least: a genome worth less than this need not be finished.

        Returns:
            A number in [0, 1]; or None: proven to be below ``at_least``.

        Raises:
            UsageError: the genome does not fit the model.
        """
        del parent
        self._rows.check(counts)
        if counts not in self._sums:
            self._sums[counts] = {}
            self.layer_forwards_naive += self._depth * len(self._batches)
        self.cache.begin()
        sums = self._sums[counts]
        with self._passes.open():
            value = race(
                self._ledger,
                sums,
                order=self._order,
                run=lambda batch: self._run(counts, batch),
                at_least=at_least,
            )
        if value is not None and not self._ordered:
            self._order = self._ledger.order([sums[b] for b in range(len(sums))])
            self._ordered = True
        return value

    def by_domain(self, counts: Counts) -> dict[str, float]:
        """ESAP of each domain, of a genome that is scored to the end if it was not."""
        self.score(counts)
        sums = self._sums[counts]
        values = self._ledger.by_domain([sums[batch] for batch in range(len(sums))])
        return dict(zip(self.report.tokens, values, strict=True))

    def retain(self, counts: Collection[Counts]) -> None:
        """Hidden states of these genomes stay as long as they fit; all others may go."""
        self.cache.retain(counts)

    def _run(self, counts: Counts, batch: int) -> float:
        """Acceptance of one batch's tokens, summed."""
        start, before = 0, None
        record: tuple[int, ...] = ()
        if self._reuse:
            deepest = self.cache.deepest(counts, batch)
            if deepest is not None:
                start, before = self._starts[deepest[0]], deepest[1]
            record = tuple(layer - 1 for layer in self._starts if layer > start)
        index = {layer - 1: number for number, layer in enumerate(self._starts)}

        def sink(number: int, state: State) -> None:
            self.cache.put(counts, index[number], batch, state)

        self._passes.mask(counts, start=start)
        ran = self._passes.replay.runs
        parts = self._passes.logits(
            self._batches[batch], start=start, before=before, record=record, sink=sink
        )
        total = math.fsum(
            accepted(kept, logits_NV)
            for kept, logits_NV in zip(self._kept[batch], parts, strict=True)
        )
        self.layer_forwards += self._passes.replay.runs - ran
        return total
