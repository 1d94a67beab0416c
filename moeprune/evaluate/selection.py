"""How far two models give a token the same experts: rank by rank, and as sets.

Source: *Halving the Activated Experts of a MoE Without Training*, section 8.

C documents, L MoE layers, T tokens, K ranks of a selection, R ranks that are compared.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from moeprune.core.stats import Array
from moeprune.evaluate.paired.shares import clustered_share

Ids = NDArray[Any]


@dataclass(frozen=True, slots=True)
class SelectionCounts:
    """What was counted, by document and layer.

    Attributes:
        tokens_CL: int64 tokens, counted each time that the layer ran.
        same_CLR: of them, those with the same expert at each rank; 0 beyond a layer's ranks.
        sets_CL: of them, those with the same experts in any order.
        shared_CL: experts that both selections of a token hold, summed.
        ranks_L: ranks of each layer that are compared.
    """

    tokens_CL: Array
    same_CLR: Array
    sets_CL: Array
    shared_CL: Array
    ranks_L: tuple[int, ...]

    @classmethod
    def empty(cls, documents: int, ranks_L: Sequence[int]) -> SelectionCounts:
        """Nothing counted yet."""
        layers = (documents, len(ranks_L))
        return cls(
            tokens_CL=np.zeros(layers, np.int64),
            same_CLR=np.zeros((*layers, max(ranks_L)), np.int64),
            sets_CL=np.zeros(layers, np.int64),
            shared_CL=np.zeros(layers, np.int64),
            ranks_L=tuple(ranks_L),
        )

    @property
    def arrays(self) -> dict[str, Array]:
        """Name -> what is summed where processes share the documents."""
        return {
            name: getattr(self, name) for name in ("tokens_CL", "same_CLR", "sets_CL", "shared_CL")
        }

    def add(self, document: int, row: int, one_TK: Ids, other_TK: Ids) -> None:
        """Count tokens of a document.

        Args:
            document: its place.
            row: the layer.
            one_TK: (T, K) expert ids by rank, the best first.
            other_TK: the same of the other model, in the same numbering; only as many ranks are
                compared as the shorter selection has.
        """
        ranks = self.ranks_L[row]
        one_TR, other_TR = one_TK[:, :ranks], other_TK[:, :ranks]
        # An expert stands once in a selection, so what is found is what both hold.
        held_T = (one_TR[:, :, None] == other_TR[:, None, :]).sum(axis=(1, 2))
        self.tokens_CL[document, row] += len(one_TR)
        self.same_CLR[document, row, :ranks] += (one_TR == other_TR).sum(axis=0)
        self.sets_CL[document, row] += np.count_nonzero(held_T == ranks)
        self.shared_CL[document, row] += int(held_T.sum())

    def to_json(self, *, domains_C: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> Any:
        """All shares, of all tokens of all layers alike, as ``run.json`` holds them.

        Args:
            domains_C: of each document.
            rows: (L,) what each layer is called: ``layer`` and, where it has several, ``set``.
        """
        every = np.ones(len(domains_C), np.bool_)
        layers = range(len(self.ranks_L))
        named = dict.fromkeys(domains_C)
        of = {name: np.array([name == own for own in domains_C]) for name in named}
        return {
            "documents": len(domains_C),
            "tokens": int(self.tokens_CL.sum(axis=0).min()),
            **self._shares(every, layers, intervals=True),
            "domains": {
                name: {
                    "documents": int(mask_C.sum()),
                    "tokens": int(self.tokens_CL[mask_C].sum(axis=0).min()),
                    **self._shares(mask_C, layers, intervals=True),
                }
                for name, mask_C in of.items()
            },
            "layers": [
                {**rows[row], **self._shares(every, [row], intervals=False)} for row in layers
            ],
        }

    def _shares(
        self, mask_C: NDArray[np.bool_], rows: Sequence[int], *, intervals: bool
    ) -> dict[str, Any]:
        """Shares of some documents and layers; of a rank, in the layers that have it."""
        deep = max(self.ranks_L[row] for row in rows)
        parts: list[tuple[str, Array, Array]] = []
        for rank in range(deep):
            have = [row for row in rows if self.ranks_L[row] > rank]
            same_C = self.same_CLR[mask_C][:, have, rank].sum(axis=1)
            parts.append(("ranks", same_C, self.tokens_CL[mask_C][:, have].sum(axis=1)))
        tokens_CL, own = self.tokens_CL[mask_C][:, rows], np.array(self.ranks_L)[list(rows)]
        parts.append(("same_set", self.sets_CL[mask_C][:, rows].sum(axis=1), tokens_CL.sum(axis=1)))
        places_C = (tokens_CL * own).sum(axis=1)
        parts.append(("overlap", self.shared_CL[mask_C][:, rows].sum(axis=1), places_C))
        shares = [(name, int(right_C.sum()) / int(all_C.sum())) for name, right_C, all_C in parts]
        found: dict[str, Any] = _by_name(shares)
        if intervals:
            limits = [(name, clustered_share(right, cases)) for name, right, cases in parts]
            found["intervals"] = _by_name(
                [(name, None if one is None else [one.low, one.high]) for name, one in limits]
            )
        return found


def _by_name(values: Sequence[tuple[str, Any]]) -> dict[str, Any]:
    ranks = [value for name, value in values if name == "ranks"]
    return {"ranks": ranks, **{name: value for name, value in values if name != "ranks"}}
