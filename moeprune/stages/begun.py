"""What a calibration may begin over, and what must be the same for it to go on."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from moeprune.artefact import sha256_bytes
from moeprune.checkpoint.sample import code_of, sample
from moeprune.stages.calibrated import versions
from moeprune.stages.claim import progress_file
from moeprune.stages.decode_words import written_file
from moeprune.stages.identify import OpenModel
from moeprune.stages.together import Work
from moeprune.stages.writable import check_writable


def identity(opened: OpenModel) -> dict[str, str]:
    """What tells a model from one of the same shape and routers, by what it is called.

    Raises:
        CheckpointError: its files cannot be read.
    """
    return {
        "model": opened.facts.fingerprint,
        "config.json": sha256_bytes(opened.index.config_text.encode("utf-8", "surrogatepass")),
        "content of the weights": sample(opened.index),
        "code of the checkpoint": code_of(opened.index),
    }


def engine(device: str | None) -> Mapping[str, Any]:
    """What runs the model, by what it is called: sums of two are those of neither.

    Args:
        device: as :func:`moeprune.observe.load.check_device` takes it.
    """
    from moeprune.observe.load import check_device

    place = check_device(device)
    return {
        "device": "auto" if place is None else place.type,
        **{f"version of {name}": number for name, number in versions().items()},
    }


def check_outputs(
    outputs: Sequence[Path], output: Path, *, work: Work, overwrite: bool, resume: bool
) -> None:
    """Fail now where a result cannot be written, or would replace something.

    Args:
        outputs: the stats, and what the model will have written.
        output: the stats.
        work: of this process.
        overwrite: results may be there already.
        resume: go on with what an interrupted run has left.

    Raises:
        OutputError: see :func:`moeprune.stages.writable.check_writable`.
    """
    progress, written = (work.own_file(name(output)) for name in (progress_file, written_file))
    decodes = len(outputs) > 1
    check_writable(output, overwrite=overwrite, beside=[progress, *([written] * decodes)])
    for path in outputs[1:]:
        # What the model wrote is there before the stats are: an interrupted run has left it.
        begun = resume and written.exists()
        check_writable(path, overwrite=overwrite or begun, own="rows of JSON")
