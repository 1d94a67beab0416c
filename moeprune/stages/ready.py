"""The model of a calibration, loaded or read a layer at a time, and checked."""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from moeprune.stages.decode_words import DecodeWords
from moeprune.stages.identify import OpenModel, check_unchanged
from moeprune.stages.journal import Journal
from moeprune.stages.larger import Larger, check_written, larger
from moeprune.stages.measuring import Stop
from moeprune.stages.numbers import check_numbers
from moeprune.stages.together import Work
from moeprune.stages.waves import wave_by_wave

if TYPE_CHECKING:
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
            stop: asked after each layer.
        """
        from moeprune.observe.prefill import one_by_one

        if self.large is None:
            layout = self.opened.layout
            return partial(one_by_one, self.live, layout=layout, batch_tokens=batch_tokens)
        return partial(
            wave_by_wave,
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
    memory: int | None,
    mode: str,
    words: DecodeWords,
    dtype: str,
    device: str | None,
    trust_remote_code: bool,
) -> Ready:
    """Load a model, or prepare to read it a layer at a time.

    Args:
        opened: its files.
        work: of this process.
        memory: bytes that the process may have; None: it is loaded where it fits.
        mode: of calibration.
        words: of decode mode.
        dtype: see ``load_causal_lm``, as the others.
        device: where to run.
        trust_remote_code: run Python files of the checkpoint.

    Raises:
        UsageError: it is to write, and is not loaded.
        MoePruneError: it cannot be loaded, or its files have changed.
    """
    from moeprune.observe.load import check_device, load_causal_lm
    from moeprune.observe.placed import check_fetched
    from moeprune.observe.spread import check_held

    how: dict[str, Any] = {"dtype": dtype, "trust_remote_code": trust_remote_code}
    launch = work.crew.launch
    large = None
    if not work.spread:
        place, near = check_device(device), launch.local_world
        large = larger(opened, memory=memory, device=place, processes=near, **how)
    if large is not None:
        check_written(mode, words, why=large.why or "")
        check_unchanged(opened)
        return Ready(opened=opened, live=large.streamed.model, large=large)
    parts = launch.world if work.spread else 1
    live = load_causal_lm(opened.index.path, device=device, expert_parallel=parts, **how)
    check_unchanged(opened)
    check_fetched(live, opened.layout)
    if work.spread:
        check_held(live, opened.layout, parts=parts)
    check_numbers(opened.index, opened.layout, live)
    return Ready(opened=opened, live=live, large=None)
