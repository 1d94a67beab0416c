"""From texts to stats: the model is loaded, writes where it is to, and is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from moeprune.core.progress import OnProgress
from moeprune.core.stats import CalibrationStats
from moeprune.stages import decoding
from moeprune.stages.calibrated import assembled
from moeprune.stages.decode_words import DecodeWords
from moeprune.stages.gathered import Gathered
from moeprune.stages.identify import OpenModel
from moeprune.stages.journal import Journal
from moeprune.stages.measuring import Stop
from moeprune.stages.ready import ready
from moeprune.stages.summed import summed
from moeprune.stages.together import Work


def counted(
    opened: OpenModel,
    text: Gathered,
    said: Mapping[str, Any],
    *,
    who: Mapping[str, str],
    tokenizer: Any,
    words: DecodeWords,
    dtype: str,
    device: str | None,
    memory: int | None,
    trust_remote_code: bool,
    batch_tokens: int | None,
    stable: float | None,
    output: Path | None,
    resume: bool,
    journal: Journal,
    work: Work,
    stop: Stop,
    on_progress: OnProgress,
    on_story: Callable[[str], None],
) -> CalibrationStats:
    """The stats of a request that was checked.

    Args:
        opened: the model's files.
        text: what is read.
        said: provenance of it: mode, seed, loss and more.
        who: see :func:`moeprune.stages.begun.identity`.
        tokenizer: of the model.
        words: of decode mode.
        dtype: see :func:`moeprune.stages.calibrate.calibrate`, as of the rest.
        device: where to run.
        memory: bytes that the process may have; None: the model is loaded where it fits.
        trust_remote_code: run Python files of the checkpoint.
        batch_tokens: positions of a batch; None: as many as fit.
        stable: overlap of plans from which on no more is read; None: all is read.
        output: of the calibration.
        resume: go on where an interrupted run stopped.
        journal: of the calibration.
        work: of this process.
        stop: asked after each batch.
        on_progress: told of the tokens.
        on_story: told how the job is going to be done.

    Raises:
        StoppedError: ``stop`` said so.
        MoePruneError: the model cannot be loaded or measured, or what was counted does not add up.
    """
    from moeprune.observe.batch_size import DEFAULT
    from moeprune.observe.load import decoder_dtype

    made = ready(
        opened,
        work=work,
        journal=journal,
        memory=memory,
        mode=said["mode"],
        words=words,
        dtype=dtype,
        device=device,
        trust_remote_code=trust_remote_code,
        on_story=on_story,
        kept_tokens=(batch_tokens or DEFAULT) if said.get("loss_temperature") else 0,
    )
    corpora = list(text.corpora)
    decoded: dict[str, Any] = {}
    if text.asked is not None:
        corpora, decoded = decoding.answered(
            text.asked,
            made.live,
            identity=who,
            tokenizer=tokenizer,
            seed=said["seed"],
            batch_tokens=batch_tokens or DEFAULT,
            output=output,
            resume=resume,
            stop=stop,
            on_progress=on_progress,
            work=work,
        )
    reading, arrays = summed(
        made,
        corpora,
        stable=stable,
        loss=said.get("loss_temperature"),
        seed=said["seed"],
        batch_tokens=batch_tokens,
        output=output,
        journal=journal,
        work=work,
        stop=stop,
        on_progress=on_progress,
        on_story=on_story,
    )
    how = {"dtype": decoder_dtype(made.live), "length": text.length}
    with journal.sound():
        return assembled(
            opened,
            corpora,
            arrays,
            {**said, **how, **decoded, **reading.provenance},
            read=reading.read,
        )
