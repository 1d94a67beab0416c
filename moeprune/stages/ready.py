"""The model of a calibration, loaded or read a layer at a time, and checked."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from moeprune.checkpoint.own_code import is_own_code
from moeprune.stages.decode_words import DecodeWords
from moeprune.stages.identify import OpenModel, check_unchanged
from moeprune.stages.journal import Journal
from moeprune.stages.larger import Larger, check_written, larger
from moeprune.stages.measuring import Stop
from moeprune.stages.number_type import number_type
from moeprune.stages.numbers import check_numbers
from moeprune.stages.together import Work
from moeprune.stages.waves import Waves

if TYPE_CHECKING:
    from moeprune.observe.domains import Corpus
    from moeprune.observe.prefill import Due, Step


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """A model that can be measured.

    Attributes:
        opened: its files.
        live: the model; without weights where it is read a layer at a time.
        large: how, where it is.
    """

    opened: OpenModel
    live: Any
    large: Larger | None

    def batch_tokens(
        self,
        asked: int | None,
        corpora: Sequence[Corpus],
        *,
        loss: bool,
        journal: Journal,
        work: Work,
    ) -> int:
        """Tokens of a batch.

        Args:
            asked: what the user says; None: nothing.
            corpora: what is to be read.
            loss: whether a pass has a backward one.
            journal: what an interrupted run read at once; it goes on so.
            work: of this process; all read batches of one size.
        """
        from moeprune.observe.batch_size import DEFAULT, batch_size

        if asked is not None:
            return asked
        size: int | None = journal.settled("batch size")
        if size is None:
            size = DEFAULT
            if self.large is None and not work.spread:
                layout, sharers = self.opened.layout, work.sharers
                size = batch_size(self.live, corpora, layout=layout, sharers=sharers, loss=loss)
        size = min(int(own[0]) for own in work.crew.gathered(np.array([size])))
        journal.settle("batch size", size)
        return size

    def passes(
        self,
        *,
        batch_tokens: int,
        output: Path | None,
        journal: Journal,
        on_story: Callable[[str], None],
        stop: Stop,
    ) -> Callable[[Sequence[Due]], Generator[Mapping[int, Step]]]:
        """What :func:`moeprune.stages.measuring.measured` adds up.

        Args:
            batch_tokens: positions of a batch.
            output: of the calibration.
            journal: of it.
            on_story: told what it takes to read the model a layer at a time.
            stop: asked before each batch of a layer.
        """
        from moeprune.observe.prefill import one_by_one

        if self.large is None:
            layout = self.opened.layout
            return partial(one_by_one, self.live, layout=layout, batch_tokens=batch_tokens)
        return Waves(
            self.large,
            batch_tokens=batch_tokens,
            output=output,
            journal=journal,
            on_story=on_story,
            stop=stop,
        )


def ready(
    opened: OpenModel,
    *,
    work: Work,
    journal: Journal,
    memory: int | None,
    mode: str,
    words: DecodeWords,
    dtype: str,
    device: str | None,
    trust_remote_code: bool,
    on_story: Callable[[str], None],
    kept_tokens: int = 0,
) -> Ready:
    """Load a model, or prepare to read it a layer at a time.

    Args:
        opened: its files.
        work: of this process.
        journal: of the calibration; the type that the model computes in is settled in it.
        memory: bytes that the process may have; None: it is loaded where it fits.
        mode: of calibration.
        words: of decode mode.
        dtype: as the user names it.
        device: where to run.
        trust_remote_code: run Python files of the checkpoint.
        on_story: told how the model is run, where that is not as it is stored.
        kept_tokens: of a batch, where a loaded model keeps the inputs of all layers of it.

    Raises:
        UsageError: it is to write, and is not loaded.
        MoePruneError: it cannot be loaded, or its files have changed.
    """
    from moeprune.observe.load import check_device, decoder_dtype, load_causal_lm
    from moeprune.observe.placed import check_fetched
    from moeprune.observe.spread import check_held

    launch, place = work.crew.launch, check_device(device)
    dtype = number_type(
        opened.index,
        dtype,
        journal,
        device=place,
        memory=memory,
        processes=launch.local_world,
        agree=work.crew.agree,
        on_story=on_story,
    )
    # Code that an export brings is run where it is what this moeprune writes.
    trust = trust_remote_code or is_own_code(opened.index)
    how: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust}
    large = None
    if not work.spread:
        how_large: dict[str, Any] = {
            "memory": memory,
            "processes": launch.local_world,
            "kept_tokens": kept_tokens,
        }
        large = larger(opened, device=place, **how_large, **how)
    if large is not None:
        check_written(mode, words, why=large.why or "")
        live = large.streamed.model
        check_unchanged(opened)
    else:
        parts = launch.world if work.spread else 1
        live = load_causal_lm(opened.index.path, device=device, expert_parallel=parts, **how)
        check_unchanged(opened)
        check_fetched(live, opened.layout)
        if work.spread:
            check_held(live, opened.layout, parts=parts)
        check_numbers(opened.index, opened.layout, live)
    journal.settle("number type", decoder_dtype(live))
    return Ready(opened=opened, live=live, large=large)
