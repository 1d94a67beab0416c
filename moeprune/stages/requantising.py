"""What ``--requantize`` changes beside the weights: settings of the source's own quantisation."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.core.quantisation import QuantOptions
from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.quant import SETTINGS_FILES, settings_paths, stored_format

_OWN = ("quantization_config",)


@dataclass(frozen=True, slots=True)
class Requantised:
    """Of an export whose source is quantised, and which is quantised anew.

    Attributes:
        method: of the source, as its config.json states it.
        changes: path in config.json -> new value.
        without: names of the source's settings files, which do not go along.
    """

    method: str
    changes: Mapping[tuple[str, ...], Any]
    without: tuple[str, ...] = SETTINGS_FILES

    @classmethod
    def of(
        cls, index: CheckpointIndex, options: QuantOptions | None, *, folds: bool
    ) -> Requantised | None:
        """Of an export; None: its source is not quantised, or it is not quantised anew.

        Args:
            index: the source.
            options: what was asked for.
            folds: whether a gain is folded into the weights.

        Raises:
            UsageError: ``folds``: a product of scales would be rounded twice.
        """
        stored = stored_format(index.config)
        if stored is None or options is None or not options.requantize:
            return None
        if folds:
            raise UsageError(
                "--fold-gain multiplies the scales of a quantised source, and --requantize writes "
                "new ones: export with --fold-gain first, then quantise that."
            )
        paths = settings_paths(index.config)
        return cls(stored.method, {path: None for path in paths if path != _OWN})

    @property
    def warning(self) -> str:
        """What whoever exports or uses it should know."""
        return (
            f"the source is quantised itself (quant_method {self.method}): its numbers were "
            "rounded a second time. Errors are measured against it, not against the model that it "
            "was made from."
        )


def check_source(index: CheckpointIndex, options: QuantOptions) -> None:
    """Check that the weights of the source are plain numbers, or are to be made so.

    Raises:
        UnsupportedModelError: it is quantised.
        UsageError: it is not, and plain numbers were asked for.
    """
    stored = stored_format(index.config)
    if stored is None and options.requantize:
        raise UsageError(
            f"--requantize is for quantised models, and {index.path} is none. Leave it out."
        )
    if stored is not None and not options.requantize:
        raise UnsupportedModelError(
            f"{index.path} is quantised already (quant_method {stored.method}). Quantise the "
            "checkpoint that it was made from, or pass --requantize: its numbers are rounded a "
            "second time."
        )
