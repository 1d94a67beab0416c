"""A model that streams: its skeleton, its units and where their weights lie."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from moeprune.core.layout import MoeLayout
from moeprune.observe.layers import ELSEWHERE, MoeLayer, moe_layers
from moeprune.observe.streamed.skeleton import skeleton
from moeprune.observe.streamed.stored import Stored
from moeprune.observe.streamed.units import Unit, units_of
from moeprune.observe.streamed.weights import Weights


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedModel:
    """A causal language model whose weights are in files.

    Attributes:
        model: as ``load_causal_lm`` would give it, without weights.
        layers: its MoE layers.
        units: what is loaded and freed as one.
        rest: what is always in memory.
        weights: of all of them.
        device: where it computes.
    """

    model: Any
    layers: tuple[MoeLayer, ...]
    units: tuple[Unit, ...]
    rest: Unit
    weights: Weights
    device: torch.device

    @classmethod
    def open(
        cls,
        path: Path,
        stored: Mapping[str, Stored],
        *,
        layout: MoeLayout,
        dtype: str,
        device: torch.device,
        trust_remote_code: bool = False,
    ) -> StreamedModel:
        """Build the model and find a place in it for every stored tensor, and what it needs.

        No weight is read.

        Args:
            path: the checkpoint folder.
            stored: name -> where each of its tensors lies.
            layout: of the checkpoint.
            dtype: see ``load_causal_lm``, as the others.
            device: where to compute.
            trust_remote_code: run Python files of the checkpoint.

        Raises:
            CheckpointError: the model cannot be built, or has no place for a tensor; or a weight
                is missing or of another shape.
            UnsupportedModelError: the stored format or the family cannot be read.
        """
        built = skeleton(path, dtype=dtype, device=device, trust_remote_code=trust_remote_code)
        layers = moe_layers(built.model, layout)
        units, rest = units_of(built.root, layers)
        weights = Weights(built, stored)
        head = built.model.get_output_embeddings()
        for unit in (*units, rest):
            if unit.module is not head and not ELSEWHERE.search(unit.name):  # it may be read
                weights.check(unit)
        return cls(
            model=built.model,
            layers=layers,
            units=units,
            rest=rest,
            weights=weights,
            device=device,
        )

    @property
    def head(self) -> Unit | None:
        """The unit that makes logits; None: it is part of another, or always in memory."""
        module = self.model.get_output_embeddings()
        return next((unit for unit in self.units if unit.module is module), None)

    def check_head(self) -> None:
        """Check that the head's weights are in the files; else, nothing needs them.

        Raises:
            CheckpointError: one is missing, or is stored in another shape.
        """
        if self.head is not None:
            self.weights.check(self.head)

    @property
    def total_bytes(self) -> int:
        """Bytes of all weights in memory."""
        return sum(self.weights.bytes_of(unit)[0] for unit in (*self.units, self.rest))

    def largest(self, *, head: bool) -> tuple[int, int]:
        """Bytes of the largest unit, with what always stays; and the most while one is read.

        Args:
            head: whether the model's head is read.
        """
        called = [
            unit
            for unit in self.units
            if (head or unit is not self.head) and not ELSEWHERE.search(unit.name)
        ]
        stays = self.weights.bytes_of(self.rest)[0]
        return (
            stays + max(self.weights.bytes_of(unit)[0] for unit in called),
            stays + max(self.weights.transient_of(unit) for unit in called),
        )
