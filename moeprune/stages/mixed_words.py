"""What is asked of ``plan --quantize mixed``, checked before anything is read."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path

from moeprune.core.methods import METHODS, Method
from moeprune.core.quantisation import MIXED
from moeprune.core.sizes import parse_bytes
from moeprune.errors import UsageError

WORTH = "reap-sum"  # what an expert adds in all: its weight times the norm of its output
_TARGETS = ("transformers", "vllm")  # the runtimes that read a scheme for every layer


@dataclass(frozen=True, slots=True, kw_only=True)
class MixedWords:
    """A scheme for every layer, within a budget.

    Attributes:
        weights: folder or Hub id of the model.
        budget: the most bytes that all files of the export may take together.
        option: how the budget was given, for messages.
        joint: whether experts leave for it too.
        revision: of a Hub model.
    """

    weights: str | Path
    budget: int
    option: str
    joint: bool
    revision: str | None = None

    @classmethod
    def of(
        cls,
        quantize: str | None,
        *,
        budget: str | int | None,
        max_bytes: str | int | None,
        weights: str | Path | None,
        revision: str | None = None,
    ) -> MixedWords | None:
        """From the words of ``plan``; None: schemes are not asked for.

        Raises:
            UsageError: words that do not go together, or a size that is none.
        """
        if quantize is None:
            for option, value in (("--budget", budget), ("--weights", weights)):
                if value is not None:
                    raise UsageError(
                        f"{option} {value} is for --quantize {MIXED}: give that too, or leave "
                        f"{option} out."
                    )
            return None
        if quantize != MIXED:
            raise UsageError(
                f"--quantize {quantize}: a plan chooses between schemes with --quantize {MIXED}. "
                f"One scheme for all layers is a matter of export --quantize {quantize}."
            )
        if (budget is None) == (max_bytes is None):
            raise UsageError(
                f"--quantize {MIXED} needs one of --budget SIZE (schemes alone make it fit) and "
                "--max-bytes SIZE (experts may leave too)."
            )
        if weights is None:
            raise UsageError(
                f"--quantize {MIXED} compares schemes on the weights: give --weights MODEL, the "
                "model that the stats are of."
            )
        option, text = ("--budget", budget) if max_bytes is None else ("--max-bytes", max_bytes)
        assert text is not None
        return cls(
            weights=weights,
            budget=parse_bytes(text, option=option),
            option=option,
            joint=max_bytes is not None,
            revision=revision,
        )

    def check_target(self, target: str | None) -> None:
        """Check that a runtime reads layers of different schemes.

        Raises:
            UsageError: it does not.
        """
        if target is not None and target not in _TARGETS:
            raise UsageError(
                f"--target {target} reads one scheme for all layers, --quantize {MIXED} gives them "
                f"different ones. Use --target {' or '.join(_TARGETS)}, or export --quantize int4."
            )


def by_itself(criterion: str | None) -> Method:
    """What experts are worth where no method chooses among them."""
    return replace(METHODS["reap"], criterion=criterion or WORTH)
