"""Whether a model is read a layer at a time, as one larger than memory must be."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from moeprune.core.sizes import parse_bytes
from moeprune.errors import CheckpointError, UnsupportedModelError, UsageError
from moeprune.stages.decode_words import DecodeWords
from moeprune.stages.identify import OpenModel

if TYPE_CHECKING:
    from moeprune.observe.streamed.model import StreamedModel

BESIDE = 2_000_000_000
"""What a loaded model needs beside its weights: libraries, a batch, the stacking of experts."""

_OF_FREE = 0.9  # of the memory that is free, used where the user names none


@dataclass(frozen=True, slots=True, kw_only=True)
class Larger:
    """A model that is read a layer at a time.

    Attributes:
        opened: its files.
        streamed: the model.
        memory: bytes that the process may have.
        allowed: bytes that there are for it.
        why: one line for the user, where nobody asked for it.
    """

    opened: OpenModel
    streamed: StreamedModel
    memory: int
    allowed: int
    why: str | None


def memory_asked(
    memory: str | int | None, mode: str, words: DecodeWords, *, expert_parallel: int
) -> int | None:
    """Bytes that ``--memory`` names, None without it.

    Raises:
        UsageError: it is no size, or the model would have to write or to be spread.
    """
    if memory is None:
        return None
    size = parse_bytes(memory, option="--memory")
    if expert_parallel > 1:
        raise UsageError(
            "--memory reads a whole model a layer at a time, and --expert-parallel spreads it over "
            "processes that load it. Leave one of them out."
        )
    check_written(mode, words, why="--memory reads the model a layer at a time")
    return size


def check_written(mode: str, words: DecodeWords, *, why: str) -> None:
    """Check that a model that is read a layer at a time need not write.

    Args:
        mode: of calibration.
        words: of decode mode.
        why: it is read so.

    Raises:
        UsageError: it would have to.
    """
    if mode == "decode" and not words.generations:
        raise UsageError(
            f"{why}, and so it cannot write token by token; give --generations with what it, or a "
            "server of it, wrote (or --mode prefill)."
        )


def larger(
    opened: OpenModel,
    *,
    memory: int | None,
    dtype: str,
    device: Any,
    trust_remote_code: bool,
    processes: int = 1,
    kept_tokens: int = 0,
) -> Larger | None:
    """The model to be read a layer at a time, if it is to be.

    Args:
        opened: its files.
        memory: bytes that the process may have; None: it is loaded whole where it fits.
        dtype: number type it computes in.
        device: the ``torch.device``; None: all of them, and then the model is loaded.
        trust_remote_code: run Python files of the checkpoint.
        processes: that share the memory of this machine.
        kept_tokens: of a batch, where a loaded model keeps the inputs of all layers of it.

    Raises:
        MoePruneError: the model cannot be built.
    """
    from moeprune.observe.streamed.memory import allowed_memory, device_memory
    from moeprune.observe.streamed.model import StreamedModel
    from moeprune.observe.streamed.sizing import size
    from moeprune.observe.streamed.stored import Stored

    if device is None:
        if memory is not None:
            raise UsageError(
                "--memory reads the model a layer at a time on one device, --device auto spreads "
                "it over all. Leave one of them out."
            )
        return None
    allowed = allowed_memory() // processes
    room = device_memory(device) or allowed
    # A stored code is half a byte at least, a number in memory four bytes at most.
    beside = BESIDE + _kept_bytes(opened.index.config, kept_tokens)
    if memory is None and 8 * opened.index.total_bytes + beside < room:
        return None
    folder = opened.index.path
    stored = {
        name: Stored(folder / entry.file, entry.start, entry.info.dtype, entry.info.shape)
        for name, entry in opened.index.entries.items()
    }
    how = {"dtype": dtype, "device": device, "trust_remote_code": trust_remote_code}
    try:
        streamed = StreamedModel.open(folder, stored, layout=opened.layout, **how)
    except (CheckpointError, UnsupportedModelError):
        # It may load, and if not, loading says why; where it may fit. A number in memory has half
        # the bytes of the stored one at least.
        if memory is not None or opened.index.total_bytes // 2 > room:
            raise
        return None
    whole = streamed.total_bytes + beside
    if memory is None and whole < room:
        return None
    why = None
    if memory is None:
        memory = int(_OF_FREE * allowed)
        why = f"loaded whole the model takes {size(whole)}, there are {size(room)}"
    memory = min(memory, allowed)  # beyond a limit of the system the process would be ended
    return Larger(opened=opened, streamed=streamed, memory=memory, allowed=allowed, why=why)


def _kept_bytes(config: Mapping[str, Any], tokens: int) -> int:
    """Bytes of the inputs of all layers, in float32; 0 where the config does not say their size."""
    text = config.get("text_config") or config
    width = text.get("hidden_size") or text.get("d_model") or 0
    layers = text.get("num_hidden_layers") or text.get("n_layers") or 0
    return int(tokens * width * layers * 4)
