"""Scoring of every family: side by side, after a beginning that was read once, and in any order,
a continuation gets what it gets alone.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from family_data import family_data, family_files, write_checkpoint

from moeprune.errors import UnsupportedModelError
from moeprune.evaluate.forward import Forward
from moeprune.evaluate.lines import Found, Row, shared_rows
from moeprune.evaluate.requests import Piece
from moeprune.observe.load import load_causal_lm

# Families that keep states, chunks, windows, or where the last batch stood.
QUICK = ("jamba", "minimax", "lfm2_moe", "deepseek_v4", "qwen3_next", "qwen3_vl_moe", "zaya")
# They draw a text whole: nothing says what follows a token.
DENOISE = ("diffusion_gemma",)


def rows_of(seed: int, *, begin: int, number: int = 8) -> list[Row]:
    draw = np.random.default_rng(seed)
    first = draw.integers(0, 256, begin, dtype=np.int32)
    pieces = []
    for at in range(number):
        rest = draw.integers(0, 256, 2 + 5 * at % 19, dtype=np.int32)
        ending = draw.integers(0, 256, 1 + at % 4, dtype=np.int32)
        pieces.append(Piece(context=np.concatenate([first, rest]), continuation=ending))
    return shared_rows(pieces)


def apart(found: Sequence[Found], want: Sequence[Found]) -> float:
    """Largest difference of log-probabilities, in units of what rounding may do."""
    return max(
        float((np.abs(mine.logprob - other.logprob) / other.rounding).max())
        for mine, other in zip(found, want, strict=True)
    )


@pytest.mark.parametrize(
    "name",
    [
        *(pytest.param(name, id=f"{name}-fast") for name in QUICK),
        *(pytest.param(name, id=name, marks=pytest.mark.families) for name in family_files()),
    ],
)
def test_side_by_side_is_alone(name: str, tmp_path: Path) -> None:
    path = write_checkpoint(family_data(name), tmp_path / "m")
    # Another copy: models of pictures remember where the last batch stood.
    forward, alone = (Forward(load_causal_lm(path, dtype="float32")) for _ in range(2))
    batches = [
        rows_of(0, begin=0),
        rows_of(1, begin=180),
        rows_of(1, begin=180, number=7),
        rows_of(2, begin=190),
        rows_of(3, begin=0),
    ]
    if name in DENOISE:
        with pytest.raises(UnsupportedModelError, match="cannot be scored"):
            forward.run(batches[0])
        return
    for rows in batches:
        want = [found for row in rows for found in alone.run([row])]
        assert apart(forward.run(rows), want) < 1, name
