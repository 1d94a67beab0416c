"""An export before a byte is written: the whole list of edits, and how large it will be."""

from __future__ import annotations

import shutil
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from moeprune.checkpoint.edits import TensorEdit
from moeprune.checkpoint.index import CheckpointIndex
from moeprune.checkpoint.sources import PassingFiles, passing_sizes
from moeprune.checkpoint.writer import Contents
from moeprune.core.cost import Cost
from moeprune.core.policy import RoutingPolicy
from moeprune.stages.folded import FoldedGain
from moeprune.stages.quantised import Quantised

ACTIONS = ("copy", "rename", "slice", "scale", "pad", "remap", "quantise")


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedExport:
    """Everything that will be written, and where.

    Attributes:
        index: the source.
        edits: of every tensor that stays.
        config_changes: path in config.json -> new value.
        contents: all files, known to the byte.
        output: the folder to make.
        next_token: what becomes of next-token layers, as moeprune.json records it.
        size: bytes of all tensors before and after.
        kept: (L,) experts that stay in each MoE layer.
        policy: k₁ and k₂ of the routers; None: the source's own.
        token: what a token activates and reads in it, beside the source's.
        gain: what stands for k₁ and k₂ in config.json and in the weights; None: nothing.
        quantised: how weights are stored; None: as in the source.
        warnings: one line each, for people.
        source: where weight files come from one by one, None if they all lie on the disk.
    """

    index: CheckpointIndex
    edits: tuple[TensorEdit, ...]
    config_changes: Mapping[tuple[str, ...], Any]
    contents: Contents
    output: Path
    next_token: Mapping[str, Any]
    size: Mapping[str, Any]
    kept: tuple[int, ...]
    policy: RoutingPolicy | None
    token: Cost
    gain: FoldedGain | None
    warnings: tuple[str, ...]
    quantised: Quantised | None = None
    source: PassingFiles | None = None

    @property
    def removed(self) -> list[str]:
        """Tensors of the source that leave, in the order of the disk."""
        kept = {edit.source for edit in self.edits}
        kept |= {piece.source for e in self.edits if e.making for piece in e.making.pieces}
        return [name for name in self.index.entries if name not in kept]

    def action(self, edit: TensorEdit) -> str:
        """What happens to a tensor, one of ``ACTIONS``.

        ``pad`` slices and fills up, or adds the tensor of an empty expert. ``remap`` replaces the
        ids of experts that a routing table holds. ``scale`` multiplies what stays of it.
        ``quantise`` computes it from a weight, times a factor where there is one.
        """
        if edit.making is not None:
            return "quantise"
        if edit.pad:
            return "pad"
        if edit.table is not None:
            return "remap"
        if edit.factor != 1.0:
            return "scale"
        if edit.ids is not None:
            return "slice"
        return "copy" if edit.source == edit.target else "rename"

    def to_json(self) -> dict[str, Any]:
        """The whole list, as plain JSON values."""
        files = {edit.target: s.name for s in self.contents.shards for edit in s.edits}
        return {
            "output": str(self.output),
            "tensors": [
                {
                    "action": self.action(edit),
                    "source": edit.source,
                    "target": edit.target,
                    "file": files[edit.target],
                    "dtype": edit.info.dtype,
                    "shape": list(edit.info.shape),
                    "bytes": edit.info.nbytes,
                }
                for edit in self.edits
            ],
            "removed": self.removed,
            "config": {".".join(path): value for path, value in self.config_changes.items()},
            "next_token_layers": dict(self.next_token),
            "files": self.contents.sizes,
            "size": dict(self.size),
            "token": self.token.to_json(),
            "bytes_to_write": self.contents.total_bytes,
            "bytes_needed": self.bytes_needed,
            "downloads": self.downloads,
            "bytes_free": self.bytes_free,
            "warnings": list(self.warnings),
            **({"policy": self.policy.to_json()} if self.policy else {}),
            **({"folded_gain": self.gain.to_json()} if self.gain else {}),
            **({"quantisation": self.quantised.to_json()} if self.quantised else {}),
        }

    @property
    def downloads(self) -> dict[str, int]:
        """Weight file of the source -> bytes, of those that must be downloaded for this."""
        return passing_sizes(self.index, self.contents.shards, self.source)

    @property
    def bytes_needed(self) -> int:
        """Room that writing takes: the result, and one weight file of a source that streams."""
        return self.contents.total_bytes + max(self.downloads.values(), default=0)

    @property
    def bytes_free(self) -> int:
        """Room on the disk of the output."""
        return shutil.disk_usage(self.output.parent).free

    def counts(self) -> dict[str, int]:
        """How many tensors are copied, renamed, sliced, scaled, padded, remapped and removed.

        Of quantised weights, how many weights.
        """
        found = Counter(self.action(edit) for edit in self.edits if edit.part == 0)
        return {key: found[key] for key in ACTIONS} | {"remove": len(self.removed)}
