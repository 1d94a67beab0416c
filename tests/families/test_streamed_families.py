"""Every family, read a layer at a time: the sums of the model in memory."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from family_data import family_data, params, write_checkpoint

from moeprune.observe.streamed import activations

sys.path.insert(0, str(Path(__file__).parents[1] / "observe"))
from streaming import assert_same, corpus_of, random_documents, streamed_sums, whole_sums

# They run a layer more than once for a batch, and its sums are added wave by wave in another order.
SEVERAL_TIMES = ("diffusion_gemma", "inkling2_loop", "inkling2_loop_text")


@pytest.mark.parametrize("name", params())
def test_sums(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, record_property: Any
) -> None:
    data = family_data(name)
    record_property("family", data.entry)
    monkeypatch.setattr(activations, "_SMALL", 1)
    path = write_checkpoint(data, tmp_path / "m")
    corpora = [
        corpus_of(random_documents([30, 17, 9, 25, 40, 12, 5], vocab=200)),
        corpus_of(random_documents([14, 22, 33], vocab=200, seed=4), name="e"),
    ]
    (tmp_path / "files").mkdir()
    found, _ = streamed_sums(
        path, corpora, batch_tokens=60, positions=130, memory=0, folder=tmp_path / "files"
    )
    want = whole_sums(path, corpora, batch_tokens=60)
    if name not in SEVERAL_TIMES:
        assert_same(found, want)
        return
    for mine, theirs in zip(found, want, strict=True):
        np.testing.assert_array_equal(mine["count"], theirs["count"])
        for field in theirs:
            np.testing.assert_allclose(mine[field], theirs[field], rtol=1e-12, atol=1e-13)
