"""Which number type a model that is stored in 16 bits is best run in here.

Not every processor multiplies 16-bit numbers: one without such instructions takes float32 apart
into them, several times slower than it multiplies float32 itself. What is true here is measured.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch

from moeprune.observe.products import linear

SHORT = {"bfloat16": torch.bfloat16, "float16": torch.float16}

# Where both are about as fast the stored type stays: the next run must decide the same.
_SLOWER = 1.5
_ROWS, _SIZE, _ROUNDS = 256, 1024, 5  # a few milliseconds; the size of a small expert


@dataclass(frozen=True, slots=True)
class Choice:
    """What to run a model in.

    Attributes:
        dtype: ``"auto"``: as it is stored; else the type's name.
        reason: one line for the user; empty where nothing is to be said.
    """

    dtype: str
    reason: str = ""


def choose(stored: str, *, device: torch.device | None, bytes_wide: int, room: int) -> Choice:
    """The number type for a model whose user names none.

    Args:
        stored: the type that the checkpoint states.
        device: where it is to run; None: on several.
        bytes_wide: what it takes in float32.
        room: memory that there is to load it into; one that does not fit as it is stored is not
            loaded, so that its size does not matter.
    """
    if stored not in SHORT or device is None:
        return Choice("auto")
    slower = slowdown(stored, device)
    if slower < _SLOWER:
        return Choice("auto")
    found = f"{stored} takes {slower:.1f} times as long as float32 on this CPU"
    if device.type == "cuda":
        found = f"this GPU has no {stored} of its own"
    if bytes_wide // 2 <= room < bytes_wide:
        sizes = f"takes {bytes_wide / 1e9:,.1f} GB and there are {room / 1e9:,.1f} GB"
        return Choice("auto", f"computing in {stored}: {found}, but float32 {sizes}.")
    return Choice("float32", f"computing in float32: {found}. --dtype {stored} computes as stored.")


def slowdown(stored: str, device: torch.device) -> float:
    """Time of a product of ``stored`` numbers over that of float32 numbers."""
    if device.type == "cuda":
        # Emulated where the GPU has none, but not to be told from the outside.
        real = stored != "bfloat16" or torch.cuda.is_bf16_supported(including_emulation=False)
        return 1.0 if real else float("inf")
    if device.type != "cpu":
        return 1.0
    seconds = _seconds(("float32", stored))
    return seconds[stored] / seconds["float32"]


def _seconds(names: tuple[str, ...]) -> Mapping[str, float]:
    """The fastest of a few rounds in turn, as other work on the machine only ever slows one."""
    types = {"float32": torch.float32, **SHORT}
    best = dict.fromkeys(names, float("inf"))
    factors = {
        name: (torch.ones(_ROWS, _SIZE, dtype=kind), torch.ones(_SIZE, _SIZE, dtype=kind))
        for name, kind in types.items()
        if name in names
    }
    with torch.inference_mode():
        for _ in range(_ROUNDS):
            for name, (rows, weight) in factors.items():
                start = time.perf_counter()
                linear(rows, weight)
                best[name] = min(best[name], time.perf_counter() - start)
    return best
