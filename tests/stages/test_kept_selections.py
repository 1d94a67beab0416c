"""Selections on the disk: as they were, an id in as few bytes as it takes, gone at the end."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from moeprune.errors import OutputError
from moeprune.stages.kept_selections import KeptSelections, kept_selections


def test_round_trip_and_size(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    sizes, choices, shapes = (7, 1, 30), (256, 257), ((2, 3), (1, 8))
    texts = [
        [
            rng.integers(0, count, (passes, size, ranks))
            for count, (passes, ranks) in zip(choices, shapes, strict=True)
        ]
        for size in sizes
    ]
    texts[0][0][0, 0, 0], texts[0][1][0, 0, 0] = 255, 256
    with kept_selections(tmp_path, choices) as kept:
        for text in texts:
            kept.write(text)
        assert not list(tmp_path.iterdir())  # nothing of that name is left by a kill
        for _ in range(2):
            kept.rewind()
            for size, text in zip(sizes, texts, strict=True):
                for found, wanted in zip(kept.read(size), text, strict=True):
                    assert (found == wanted).all()
        assert kept._file.seek(0, 2) == sum(sizes) * (2 * 3 * 1 + 8 * 2)


class _Full:
    def write(self, _data: bytes) -> int:
        raise OSError(28, "No space left on device")


def test_a_full_disk(tmp_path: Path) -> None:
    full: Any = _Full()
    kept = KeptSelections(full, [4], tmp_path)
    with pytest.raises(OutputError, match="No space left on device") as caught:
        kept.write([np.zeros((1, 2, 1), int)])
    assert "Make room there" in str(caught.value)
    with pytest.raises(OutputError, match="cannot keep"), kept_selections(tmp_path / "no", [4]):
        pass
