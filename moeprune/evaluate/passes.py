"""Forward passes of one model for many genomes: masks switched, layers left out, logits in parts.

L MoE rows, B documents of a batch, S positions, N scored positions of a part, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, suppress
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np
import torch
from numpy.typing import NDArray

from moeprune.core.fitness import Counts
from moeprune.errors import UsageError, VerificationError
from moeprune.evaluate.nucleus import WORKING_BYTES
from moeprune.evaluate.replay import Replay
from moeprune.evaluate.states import State

Masking = Callable[[Sequence[Sequence[int]]], AbstractContextManager[None]]
"""Given the removed expert ids of each row, a block in which no router chooses them."""


class TokenBatch(Protocol):
    """Documents side by side, padding on the right."""

    @property
    def ids_BS(self) -> NDArray[np.int64]:
        """Token ids."""

    @property
    def mask_BS(self) -> NDArray[np.int64]:
        """1 = a token, 0 = padding."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """What a genome means.

    Attributes:
        layer_L: number of the decoder layer of each row, never falling.
        order_L: expert ids of each row in the order in which they leave.
    """

    layer_L: tuple[int, ...]
    order_L: tuple[tuple[int, ...], ...]

    def check(self, counts: Counts) -> None:
        """Check that a genome is one of this model.

        Raises:
            UsageError: it is not.
        """
        fits = len(counts) == len(self.order_L) and all(
            0 <= count <= len(order) for count, order in zip(counts, self.order_L, strict=False)
        )
        if not fits:
            raise UsageError(
                f"{list(counts)} are not numbers of experts that can leave the "
                f"{len(self.order_L)} MoE layers of this model; give one for each, at most "
                f"{[len(order) for order in self.order_L]}."
            )

    def removed(self, counts: Counts, *, start: int) -> tuple[tuple[int, ...], ...]:
        """Removed ids of each row, none for rows before decoder layer ``start``."""
        return tuple(
            order[:count] if layer >= start else ()
            for layer, order, count in zip(self.layer_L, self.order_L, counts, strict=True)
        )


class Passes:
    """Forward passes of one model.

    Attributes:
        replay: its decoder layers.
        in_parts: whether logits may be made part by part.
    """

    def __init__(
        self, model: Any, *, replay: Replay, rows: Rows, masking: Masking, logits_bytes: int
    ) -> None:
        self.replay = replay
        self._takes = frozenset(inspect.signature(model.forward).parameters)
        self.in_parts = "logits_to_keep" in self._takes
        self._model = model
        self._rows = rows
        self._masking = masking
        self._logits_bytes = logits_bytes
        self._vocabulary = int(model.get_input_embeddings().num_embeddings)
        self._stack = ExitStack()
        self._masked: tuple[tuple[int, ...], ...] | None = None

    @contextmanager
    def open(self) -> Iterator[None]:
        """A block for passes: layers are replaced within it, masks are taken off at its end."""
        with self.replay.installed(), ExitStack() as self._stack:
            self._masked = None
            yield

    def mask(self, counts: Counts | None, *, start: int) -> None:
        """Forbid a genome's experts to the routers of layer ``start`` and later ones."""
        removed = None if counts is None else self._rows.removed(counts, start=start)
        if removed == self._masked:
            return
        self._stack.close()
        self._masked = removed
        if removed is not None:
            self._stack.enter_context(self._masking(removed))

    def drop_masks(self) -> None:
        """Take masks off after a pass that failed, whether or not their routers ran."""
        self._masked = None
        with suppress(VerificationError):
            self._stack.close()

    def logits(
        self,
        batch: TokenBatch,
        *,
        start: int = 0,
        before: State = None,
        record: Sequence[int] = (),
        sink: Callable[[int, State], None] | None = None,
    ) -> Iterator[torch.Tensor]:
        """One pass through the layers from ``start`` on; the logits of its tokens in parts.

        Args:
            batch: what is read; padding gives no logits.
            start: first layer that runs.
            before: what the layer before it returned.
            record: layers whose output goes to ``sink``.
            sink: is given a layer's number and its output.

        Yields:
            (N, V) logits in the model's dtype: parts of the positions from left to right, in each
            document by document.
        """
        mask_BS = torch.from_numpy(np.ascontiguousarray(batch.mask_BS)).bool()
        spans = self._spans(*mask_BS.shape)
        last = len(self.replay.layers) - 1
        final: State = None

        def keep(number: int, state: State) -> None:
            nonlocal final
            if number == last and len(spans) > 1:
                final = state
            if number in record and sink is not None:
                sink(number, state)

        for part, (low, high) in enumerate(spans):
            if part == 0:
                self.replay.begin(start, before, record=(*record, last), sink=keep)
            else:  # the layers return what they returned: only the head runs
                self.replay.begin(last + 1, final)
            logits_BXV = self.raw_logits(batch, None if len(spans) == 1 else (low, high))
            yield logits_BXV[mask_BS[:, low:high].to(logits_BXV.device)]

    @torch.inference_mode()
    def raw_logits(self, batch: TokenBatch, span: tuple[int, int] | None) -> torch.Tensor:
        """(B, X, V) logits of positions ``span``, or of all, padding included."""
        device = self._model.device
        options: dict[str, Any] = {}
        # Without padding the model's own causal mask is the same and faster.
        if not batch.mask_BS.all():
            options["attention_mask"] = torch.from_numpy(batch.mask_BS).to(device)
            if "position_ids" in self._takes:
                # What the model counts itself; some look for pictures first if they must.
                places_S = torch.arange(batch.ids_BS.shape[1], device=device)
                options["position_ids"] = places_S.expand(*batch.ids_BS.shape)
        if span is not None:
            options["logits_to_keep"] = torch.arange(*span, device=device)
        try:
            ids_BS = torch.from_numpy(batch.ids_BS).to(device)
            logits: torch.Tensor = self._model(input_ids=ids_BS, use_cache=False, **options).logits
        except torch.OutOfMemoryError as problem:
            raise UsageError(
                f"a batch of {batch.ids_BS.size} tokens does not fit the GPU's memory beside the "
                "hidden states; give a smaller --batch-tokens or --cache."
            ) from problem
        return logits

    def _spans(self, documents: int, positions: int) -> list[tuple[int, int]]:
        width = positions
        if self.in_parts:
            width = max(1, self._logits_bytes // (documents * self._vocabulary * WORKING_BYTES))
        return [(low, min(low + width, positions)) for low in range(0, positions, width)]
