"""Whether a model without a family file may be run, and whether it ran as was assumed."""

from __future__ import annotations

from collections.abc import Mapping

from moeprune.checkpoint.index import CheckpointIndex
from moeprune.core.layout import MoeLayout
from moeprune.core.stats import CalibrationStats
from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.stages.unlisted import GATINGS, INFERRED, LISTED, RULE_SET, UNKNOWN, own_code


def check_measurable(
    index: CheckpointIndex, layout: MoeLayout, origin: str, *, trust_remote_code: bool
) -> None:
    """Check that calibration can run this model and knows its router; builds it without memory.

    Args:
        index: of the checkpoint.
        layout: of the checkpoint.
        origin: how its family is known.
        trust_remote_code: whether the checkpoint's own code may run.

    Raises:
        UsageError: an option is missing, or is one too many.
        UnsupportedModelError: the checkpoint's code cannot be observed, or its router makes scores
            another way than stated.
    """
    if origin == INFERRED and trust_remote_code and own_code(index.config):
        raise UsageError(
            f"family {layout.model_type} was inferred from transformers' own code, and the "
            "checkpoint brings other code. Leave --trust-remote-code out."
        )
    if origin != RULE_SET:
        return
    check_trusted(layout, origin, trust_remote_code=trust_remote_code)
    if layout.gating == UNKNOWN:
        raise UsageError(
            f"nothing says how routers of model type {layout.model_type} make scores of logits: "
            f"give --gating {', '.join(GATINGS[:-1])} or {GATINGS[-1]}."
        )
    from moeprune.observe.foreign import check_foreign

    check_foreign(index.path, layout)


def check_passes(stats: CalibrationStats, num_tokens: Mapping[str, int], origin: str) -> None:
    """Check that a family that is not listed ran every layer once, as was assumed.

    Args:
        stats: what was measured.
        num_tokens: domain -> tokens of its text.
        origin: how the family is known.

    Raises:
        UnsupportedModelError: a layer saw other tokens than the text has.
    """
    for domain in stats.domains if origin != LISTED else ():
        seen_L = domain.arrays["tokens"].sum(axis=0)
        if (seen_L != num_tokens[domain.name]).any():
            raise UnsupportedModelError(
                f"the layers of model type {stats.model.model_type} do not run once a token; such "
                "a model needs a family file (docs/extend.md)."
            )


def check_trusted(layout: MoeLayout, origin: str, *, trust_remote_code: bool) -> None:
    """Check that a model that only its own code can run may be run.

    Raises:
        UsageError: it may not.
    """
    if origin == RULE_SET and not trust_remote_code:
        raise UsageError(
            f"model type {layout.model_type} runs by Python code that comes with the checkpoint. "
            "Read that code, then give --trust-remote-code."
        )
