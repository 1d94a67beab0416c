"""Forward passes that give the log-probabilities of chosen tokens, logits only where needed.

Padding stands on the right, where it cannot influence what stands before it.

R rows (sequences) of a pass, S positions, P of which give logits, N scored tokens, V vocabulary.
"""

from __future__ import annotations

import inspect
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeprune.errors import CheckpointError, UnsupportedModelError, UsageError
from moeprune.evaluate.batching import LOGITS_BYTES
from moeprune.evaluate.beginnings import Beginnings
from moeprune.evaluate.encoding import Ids
from moeprune.evaluate.lines import Found, Row
from moeprune.evaluate.requests import Request

# How far the rest of a batch moves a logit, in epsilons of the type times the largest logit of its
# position. Tiny models of most families stay below 12, the worst reaches 70; of half precision,
# most is the rounding of the last step.
_UNITS, _UNITS_OF_HALF = 128.0, 4.0
# Of the logits that are made float32 and normalised at a time; that takes a few times as much.
_PART_BYTES = 1 << 27


class Forward:
    """Forward passes of one model, which is left as it was.

    Attributes:
        pads: sequences of different lengths may stand side by side.
    """

    def __init__(self, model: Any, *, logits_bytes: int = LOGITS_BYTES) -> None:
        self._model = model
        takes = inspect.signature(model.forward).parameters
        self._in_parts = "logits_to_keep" in takes
        # Whether code that comes with a checkpoint leaves padding out, nobody has tested.
        own = type(model).__module__.startswith("transformers_modules.")
        self.pads = "attention_mask" in takes and not own
        self._vocabulary = int(model.get_input_embeddings().num_embeddings)
        self._logits_bytes = logits_bytes
        self._beginnings = Beginnings(model)

    def check_vocabulary(self, requests: Sequence[Request]) -> None:
        """Check that the model has every token of the requests.

        Raises:
            CheckpointError: it does not.
        """
        pieces = (piece for request in requests for piece in request.pieces)
        largest = max((int(max(p.context.max(), p.continuation.max())) for p in pieces), default=0)
        if largest >= self._vocabulary:
            raise CheckpointError(
                f"the tokenizer gives token {largest}, the model has {self._vocabulary}. "
                "The tokenizer files belong to another model."
            )

    def holds(self, rows: Sequence[Row]) -> bool:
        """Whether rows may stand in one pass, and their logits are not too many."""
        sizes = [row.ids.size for row in rows]
        span = max(sizes) - min(row.first for row in rows)
        size = len(rows) * span * self._vocabulary * 4
        return size <= self._logits_bytes and (self.pads or len(set(sizes)) == 1)

    @torch.inference_mode()
    def run(self, rows: Sequence[Row]) -> list[Found]:
        """One pass; what it finds of each piece, in the order of rows.

        Raises:
            UnsupportedModelError: the model does not say what follows each token.
            UsageError: it does not fit the GPU's memory.
        """
        most = min(row.first for row in rows)
        try:
            size = self._beginnings.size_for([row.ids for row in rows], most=most)
            if size and self._beginnings.tried(lambda: self._same(rows[:2], size)):
                return self._found(rows, size)
            return self._found(rows, 0)
        except torch.OutOfMemoryError as problem:
            longest = max(row.ids.size for row in rows)
            raise UsageError(
                f"a batch of {len(rows)} sequences of up to {longest} tokens does not fit the "
                "GPU's memory; give a smaller --batch-size."
            ) from problem

    def _same(self, rows: Sequence[Row], size: int) -> bool:
        """Whether rows that go on from a kept beginning get the numbers of whole ones."""
        return all(
            bool((np.abs(mine.logprob - other.logprob) <= other.rounding).all())
            for mine, other in zip(self._found(rows, size), self._found(rows, 0), strict=True)
        )

    def _found(self, rows: Sequence[Row], begun: int) -> list[Found]:
        positions = sorted({p for row in rows for want in row.wants for p in want.places})
        column = {position: number for number, position in enumerate(positions)}
        logits_RPV = self._logits(rows, positions, begun)
        wants = [(line, want) for line, row in enumerate(rows) for want in row.wants]
        flat = [line * len(positions) + column[p] for line, want in wants for p in want.places]
        targets = np.concatenate([want.targets for _, want in wants])
        logprob_N, greedy_N, rounding_N = self._chosen(logits_RPV, np.array(flat), targets)
        done, first = [], 0
        for _, want in wants:
            mine = slice(first, first + want.targets.size)
            first += want.targets.size
            done.append(
                Found(
                    piece=want.piece,
                    logprob=logprob_N[mine],
                    greedy=greedy_N[mine],
                    rounding=rounding_N[mine],
                )
            )
        return done

    def _logits(self, rows: Sequence[Row], positions: Sequence[int], begun: int) -> torch.Tensor:
        """(R, P, V) logits in the model's dtype, the first ``begun`` tokens read once."""
        width = max(row.ids.size for row in rows)
        ids_RS = np.zeros((len(rows), width), np.int64)
        mask_RS = np.zeros_like(ids_RS)
        for line, row in enumerate(rows):
            ids_RS[line, : row.ids.size] = row.ids
            mask_RS[line, : row.ids.size] = 1
        device = input_device(self._model)
        options: dict[str, Any] = {"use_cache": False}
        if begun:
            options = self._beginnings.options(rows[0].ids[:begun], len(rows), device=device)
        # Without padding the model's own causal mask is the same and faster.
        if not mask_RS.all():
            options["attention_mask"] = torch.from_numpy(mask_RS).to(device)
        places_P = torch.tensor(positions, device=device) - begun
        if self._in_parts and len(positions) < width - begun:
            options["logits_to_keep"] = places_P
        ids = torch.from_numpy(ids_RS[:, begun:]).to(device)
        logits: torch.Tensor = self._model(input_ids=ids, **options).logits
        if logits.shape[1] == len(positions):
            return logits
        if logits.shape[1] != width - begun:
            raise UnsupportedModelError(
                f"{type(self._model).__name__} gives {logits.shape[1]} logits for {width - begun} "
                "tokens, so what follows a text cannot be scored. Leave out tasks that score."
            )
        return logits[:, places_P.to(logits.device)]

    def _chosen(
        self, logits_RPV: torch.Tensor, flat_N: NDArray[np.int64], targets_N: Ids
    ) -> tuple[NDArray[np.float64], NDArray[np.bool_], NDArray[np.float64]]:
        """Log-probability of each target, whether it is the most probable, and its rounding."""
        logits_XV = logits_RPV.reshape(-1, logits_RPV.shape[-1])
        # Letters are asked of one position: it is normalised once.
        places, back_N = np.unique(flat_N, return_inverse=True)
        total, best, scale = [], [], []
        step = max(1, _PART_BYTES // (4 * logits_XV.shape[1]))
        for start in range(0, places.size, step):
            part = torch.from_numpy(places[start : start + step]).to(logits_XV.device)
            logits_NV = logits_XV[part].float()
            total.append(torch.logsumexp(logits_NV, -1).double().cpu().numpy())
            best.append(logits_NV.argmax(-1).cpu().numpy())
            size_N = torch.where(logits_NV.isfinite(), logits_NV, 0.0).abs().amax(-1)
            scale.append(size_N.double().cpu().numpy())
        at = torch.from_numpy(flat_N).to(logits_XV.device)
        chosen = logits_XV[at, torch.from_numpy(targets_N).long().to(at.device)]
        logprob_N = chosen.float().double().cpu().numpy() - np.concatenate(total)[back_N]
        greedy_N = np.concatenate(best)[back_N] == targets_N
        unit = rounding_unit(self._model, logits_RPV.dtype)
        return logprob_N, greedy_N, unit * np.maximum(1.0, np.concatenate(scale))[back_N]


def rounding_unit(model: Any, dtype: torch.dtype) -> float:
    """How far a batch may move a logit, over the largest logit of the position.

    Args:
        model: computes in its own type, or in a wider one than it is stored in.
        dtype: of its logits.
    """
    types = [kind for kind in (model.dtype, dtype) if kind.is_floating_point and kind.itemsize > 1]
    eps = max((float(torch.finfo(kind).eps) for kind in types), default=2.0**-8)
    return eps * (_UNITS if eps < 1e-5 else _UNITS_OF_HALF)


def input_device(model: Any) -> torch.device:
    """Where the tokens that a model reads must lie."""
    device: torch.device = model.device
    if device.type != "meta":
        return device
    # Embeddings that lie elsewhere are fetched to where they are used.
    hook = getattr(model.get_input_embeddings(), "_hf_hook", None)
    place = getattr(hook, "execution_device", None)
    return torch.device("cpu" if place is None else place)
