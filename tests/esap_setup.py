"""What ESAP's tests share: batches, evaluators of checkpoints, and ESAP the slow way."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from moeprune.core.fitness import Counts
from moeprune.core.layout import MoeLayout
from moeprune.evaluate.esap import Esap
from moeprune.observe.layers import decoder_layers, moe_layers
from moeprune.observe.load import load_causal_lm
from moeprune.routing.mask import masked_experts
from moeprune.stages.identify import open_model

Documents = Mapping[str, Sequence[Sequence[NDArray[np.int64]]]]  # domain -> batches -> ids


@dataclass(frozen=True)
class Batch:
    ids_BS: NDArray[np.int64]
    mask_BS: NDArray[np.int64]


def batch_of(documents: Sequence[NDArray[np.int64]], *, filler: int = 5) -> Batch:
    """Side by side, padded on the right with a token like any other."""
    width = max(ids.size for ids in documents)
    ids_BS = np.full((len(documents), width), filler, np.int64)
    mask_BS = np.zeros_like(ids_BS)
    for row, ids in enumerate(documents):
        ids_BS[row, : ids.size] = ids
        mask_BS[row, : ids.size] = 1
    return Batch(ids_BS, mask_BS)


def documents(lengths: Mapping[str, Sequence[Sequence[int]]], *, seed: int = 0) -> Documents:
    generator = np.random.default_rng(seed)
    return {
        name: [[generator.integers(0, 250, size=n) for n in batch] for batch in batches]
        for name, batches in lengths.items()
    }


# Ragged: unequal documents in a batch, unequal batches, domains with unequal numbers of tokens.
TEXT = documents({"long": [[19, 12, 1], [7]], "short": [[6, 6]], "other": [[3, 9], [11]]})


class Subject:
    """A model, and all that an evaluator of it is given."""

    def __init__(self, path: Path, *, text: Documents = TEXT) -> None:
        self.layout: MoeLayout = open_model(path).layout
        self.model: Any = load_causal_lm(path)
        self.text = text
        self.rows = moe_layers(self.model, self.layout)
        generator = np.random.default_rng(1)
        self.order = [self._order(row.num_experts, generator) for row in self.rows]

    def _order(self, experts: int, generator: np.random.Generator) -> list[int]:
        """All experts, one of each router group at a time; two of each stay."""
        groups = self.layout.num_groups
        size = experts // groups
        inside = [generator.permutation(size) + group * size for group in range(groups)]
        ids = [int(part[place]) for place in range(size) for part in inside]
        return ids[: experts - max(2 * groups, self.layout.top_k)]

    def masking(self, removed: Sequence[Sequence[int]]) -> Any:
        return masked_experts(
            self.model,
            routers=[row.router for row in self.rows],
            num_experts=self.layout.num_experts,
            removed=removed,
            extra=self.layout.extra_rows,
        )

    def esap(self, **options: Any) -> Esap:
        given = {
            "layers": decoder_layers(self.model, self.layout),
            "layer_of_row": [row.layer for row in self.rows],
            "order": self.order,
            "batches": {n: [batch_of(b) for b in batches] for n, batches in self.text.items()},
            "masking": self.masking,
            **options,
        }
        return Esap(self.model, **given)

    def genome(self, *parts: int) -> Counts:
        """Counts in units of a router group, repeated over the rows."""
        units = [parts[row % len(parts)] for row in range(len(self.rows))]
        return tuple(unit * self.layout.num_groups for unit in units)

    def slow(self, counts: Counts, *, objective: str = "mean") -> float:
        """ESAP one document and one token at a time, over the whole vocabulary."""
        removed = [order[:count] for order, count in zip(self.order, counts, strict=True)]
        means = []
        for batches in self.text.values():
            values = []
            for ids in (ids for batch in batches for ids in batch):
                inputs = torch.from_numpy(ids)[None]
                with torch.no_grad():
                    full = self.model(input_ids=inputs, use_cache=False).logits[0].double()
                    with self.masking(removed):
                        mine = self.model(input_ids=inputs, use_cache=False).logits[0].double()
                for p, q in zip(full.softmax(-1).numpy(), mine.softmax(-1).numpy(), strict=True):
                    values.append(np.minimum(p, q).sum())
            means.append(np.mean(values))
        return float(min(means) if objective == "worst-domain" else np.mean(means))
