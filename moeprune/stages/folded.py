"""k₁, and a factor of each layer's experts in place of k₂: what a folded export holds.

L MoE layers.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from moeprune.architectures import output_maps
from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.scaling import as_factor
from moeprune.core.layout import MoeLayout, TensorInfo
from moeprune.core.policy import RoutingPolicy
from moeprune.errors import CheckpointError, UnsupportedModelError, UsageError
from moeprune.quant import multipliers, stored_format

# What half a unit in the last place is to a value, of types in which a product is rounded coarsely.
_ROUNDING = {"BF16": 2.0**-8, "F16": 2.0**-11}


@dataclass(frozen=True, slots=True, kw_only=True)
class FoldedGain:
    """The numbers of a folded export.

    Attributes:
        k1: experts that run, which config.json states.
        k2: what the factors stand for.
        gains: (L,) factor of what the experts of each layer give; float32 numbers.
        stats_sha256: of the stats file that they are from; None: stats in memory.
    """

    k1: int
    k2: int
    gains: tuple[float, ...]
    stats_sha256: str | None

    @property
    def changes_weights(self) -> bool:
        """Whether any factor is not 1."""
        return any(gain != 1.0 for gain in self.gains)

    def policy(self, layout: MoeLayout) -> RoutingPolicy:
        """What live routers do that compute the same as the folded export."""
        k2 = self.k1 if layout.renormalises else max(layout.num_experts)
        return RoutingPolicy(k1=self.k1, k2=k2, gain=self.gains)

    def config_changes(self, layout: MoeLayout) -> dict[tuple[str, ...], int]:
        """Path in config.json -> k₁, of every key that states how many experts run."""
        return dict.fromkeys(layout.top_k_keys, self.k1)

    def factors(
        self, index: CheckpointIndex, layout: MoeLayout, staying: Mapping[str, TensorInfo]
    ) -> dict[str, float]:
        """Stored tensor -> what its values are multiplied by; others stay as they are.

        Args:
            index: the source.
            layout: of the source, next-token layers included: they follow the last layer.
            staying: its tensors that the export has in some form.

        Raises:
            UnsupportedModelError: experts are stored so that a gain has no place to go.
        """
        if not self.changes_weights:
            return {}
        stored = stored_format(index.config)
        found: dict[str, float] = {}
        for linear in output_maps(layout, staying):
            gain = self.gains[linear.row]
            if gain == 1.0:
                continue
            for name, power in multipliers(stored, linear.parts, staying).items():
                found[name] = gain if power > 0 else as_factor(1 / gain)
        return found

    def to_json(self) -> dict[str, Any]:
        """What moeprune.json says under ``folded_gain``."""
        return {
            "k1": self.k1,
            "k2": self.k2,
            "gains": list(self.gains),
            "stats": self.stats_sha256,
            "approximation": "a constant a layer stands for each token's own m_k1 / m_k2",
        }

    @classmethod
    def from_json(cls, body: Any, *, path: Path) -> FoldedGain:
        """Rebuild from :meth:`to_json`'s object.

        Raises:
            CheckpointError: it is malformed.
        """
        try:
            gains = tuple(body["gains"])
            made = cls(k1=body["k1"], k2=body["k2"], gains=gains, stats_sha256=body["stats"])
            good = bool(gains) and all(type(k) is int and k > 0 for k in (made.k1, made.k2))
            good = good and all(type(gain) is float and as_factor(gain) == gain for gain in gains)
        except (KeyError, TypeError, UnsupportedModelError):
            good = False
        if not good:
            raise CheckpointError(f"{path}: folded_gain is malformed. Export again.")
        return made

    def check_layers(self, layout: MoeLayout, *, path: Path) -> None:
        """Check that there is a factor for each MoE layer.

        Raises:
            CheckpointError: there is not.
        """
        if len(self.gains) != len(layout.layer_ids):
            raise CheckpointError(
                f"{path}: folded_gain has {len(self.gains)} factors, the source "
                f"{len(layout.layer_ids)} MoE layers. Export again."
            )


def folded(edits: Sequence[TensorEdit], factors: Mapping[str, float]) -> list[TensorEdit]:
    """The edits with their factors; experts of padding, which are zero, have none."""
    return [
        edit
        if edit.source not in factors or edit.ids == ()
        else replace(edit, factor=factors[edit.source])
        for edit in edits
    ]


def rounding_of(factors: Iterable[str], tensors: Mapping[str, TensorInfo]) -> float:
    """How far rounding the products may move a weight, relative; 0 where float32 holds them.

    Args:
        factors: the tensors that are multiplied.
        tensors: all tensors.
    """
    return max((_ROUNDING.get(tensors[name].dtype, 0.0) for name in factors), default=0.0)


def needs_both(stats: object, k1: int | None, k2: object) -> None:
    """Check that a fold says what for.

    Raises:
        UsageError: there are stats, and not both of k₁ and k₂.
    """
    if stats is not None and (k1 is None or k2 is None):
        raise UsageError(
            "--fold-gain writes the gain of --k1 and --k2 into the weights: give both, e.g. "
            "--k1 4 --k2 16."
        )
