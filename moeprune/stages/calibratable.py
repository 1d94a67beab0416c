"""Open a model and check, before it is loaded, that calibration can run it and see its experts."""

from __future__ import annotations

from pathlib import Path

from moeprune.stages.asking import check_decodes
from moeprune.stages.identify import OpenModel, open_model
from moeprune.stages.runnable import check_measurable
from moeprune.stages.stored import check_runnable


def open_calibratable(
    model: str | Path,
    *,
    mode: str,
    revision: str | None,
    gating: str | None,
    trust_remote_code: bool,
    loss: bool = False,
) -> OpenModel:
    """Open a local folder or a Hub id whose experts calibration can observe.

    Args:
        model: the folder or the id.
        mode: of calibration.
        revision: of a Hub model.
        gating: from router logits to scores, where only the model's own code says so.
        trust_remote_code: whether code of the checkpoint may run.
        loss: whether a loss is taken back through the layers.

    Raises:
        MoePruneError: the model cannot be read, run or observed, or an option does not fit it.
    """
    opened = open_model(model, revision=revision, gating=gating)
    from moeprune.observe.prefill import check_observer

    check_observer(opened.layout)
    if loss:
        from moeprune.observe.loss.reading import check_loss

        check_loss(opened.layout)
    if mode == "decode":
        check_decodes(opened.layout)
    check_runnable(opened.index, opened.layout)
    check_measurable(
        opened.index, opened.layout, opened.origin, trust_remote_code=trust_remote_code
    )
    return opened
