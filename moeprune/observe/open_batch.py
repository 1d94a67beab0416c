"""A batch on its way through the model: which of its positions are tokens, and which are counted.

B documents, S positions, T tokens without padding, C of them counted, E routed experts.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor


@dataclass(slots=True, kw_only=True)
class OpenBatch:
    """What sums must know of a batch while its layers report.

    Attributes:
        positions: B · S.
        fold_C: int64 fold of each counted token, on the CPU.
        live_T: places of the tokens in the flattened batch, or None where it has no padding.
        counted_C: places of the counted tokens among the tokens, or None: all are counted.
        number_C: number of each counted token's document, or None: not told.
        seen: rows that have reported.
        fold_T: int64 fold of each token, counted or not, on the CPU.
        document_T: int64 line of the batch that each token stands in, on the CPU.
        fold_B: int64 fold of each line; 0 where it is all padding.
        number_B: number of each line's document, or None: not told.
        targets: tokens whose loss has been added.
        changed: rows of which a loss has said something.
        change_2BE: row -> float64 sums over each document of what leaving an expert out changes:
            dropped, and with the next one in its place; of layers that run several times.
    """

    positions: int = 0
    fold_C: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    live_T: Tensor | None = None
    counted_C: Tensor | None = None
    number_C: NDArray[np.int64] | None = None
    seen: set[int] = field(default_factory=set)
    fold_T: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    document_T: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    fold_B: Tensor = field(default_factory=lambda: torch.zeros(0, dtype=torch.int64))
    number_B: NDArray[np.int64] | None = None
    targets: int = 0
    changed: set[int] = field(default_factory=set)
    change_2BE: dict[int, Tensor] = field(default_factory=dict)

    @classmethod
    def of(
        cls,
        fold_BS: NDArray[np.int64],
        counted_BS: NDArray[np.bool_] | None = None,
        number_B: NDArray[np.int64] | None = None,
    ) -> OpenBatch:
        """A batch of which nothing has reported.

        Args:
            fold_BS: the fold of every position, −1 in the padding.
            counted_BS: the tokens to count, padding aside; None: all.
            number_B: number of each document in its domain, for messages.
        """
        flat = torch.from_numpy(fold_BS.reshape(-1))
        fold_T = fold_C = flat[flat >= 0]
        full = fold_C.numel() == flat.numel()
        live_T = None if full else torch.nonzero(flat >= 0).reshape(-1)
        counted_C = None
        number_C = None
        if number_B is not None:
            number_C = np.broadcast_to(number_B[:, None], fold_BS.shape)[fold_BS >= 0]
        if counted_BS is not None:
            counted_T = torch.from_numpy(counted_BS.reshape(-1))[flat >= 0]
            if not counted_T.all():
                counted_C = torch.nonzero(counted_T).reshape(-1)
                fold_C = fold_C[counted_C]
                number_C = None if number_C is None else number_C[counted_C.numpy()]
        return cls(
            positions=flat.numel(),
            fold_C=fold_C,
            live_T=live_T,
            counted_C=counted_C,
            number_C=number_C,
            fold_T=fold_T,
            document_T=torch.from_numpy(np.nonzero(fold_BS >= 0)[0]),
            fold_B=torch.from_numpy(fold_BS.max(axis=1, initial=0)),
            number_B=number_B,
        )

    def document(self, token: int) -> str:
        """A counted token's document, for a message."""
        return "a document" if self.number_C is None else f"document {self.number_C[token]}"

    def named(self, line: int) -> str:
        """The document of a line of the batch, for a message."""
        return "a document" if self.number_B is None else f"document {self.number_B[line]}"
