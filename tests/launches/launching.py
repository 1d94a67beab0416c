"""Start several processes as torchrun does, or by torchrun itself."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import forked
import numpy as np

from moeprune.core.domain_stats import SIGNED
from moeprune.core.stats import CalibrationStats

DRIVER = Path(__file__).with_name("driver.py")


def torchrun(processes: int, *command: str | Path) -> list[str]:
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone"]
    return [*launcher, "--nproc-per-node", str(processes), *map(str, command)]


def environment() -> dict[str, str]:
    """For processes that share few cores."""
    return {**os.environ, "OMP_NUM_THREADS": "1", "HF_HUB_OFFLINE": "1"}


def drive(
    processes: int, jobs: Mapping[str, Mapping[str, Any]], folder: Path
) -> dict[str, list[Any]]:
    """Job -> what each process said of it."""
    file = folder / "jobs.json"
    file.write_text(json.dumps([{"name": n, "options": dict(o)} for n, o in jobs.items()]), "utf-8")
    for process in forked.launch(processes, DRIVER, file, folder):
        assert process.returncode == 0, process.communicate()[1][-3000:]
    return {
        name: [
            json.loads((folder / f"{name}.{rank}.json").read_text("utf-8"))
            for rank in range(processes)
        ]
        for name in jobs
    }


def assert_same(one: Path, many: Path, *, rtol: float = 1e-9) -> None:
    """Counts exactly, sums to ``rtol``, and everything else that a stats file says."""
    want, found = CalibrationStats.load(one), CalibrationStats.load(many)
    assert found.model == want.model
    assert found.provenance == want.provenance
    for mine, theirs in zip(want.domains, found.domains, strict=True):
        for name in ("name", "source", "corpus_sha256", "documents", "shards", "duplicates"):
            assert getattr(mine, name) == getattr(theirs, name), name
        assert set(mine.arrays) == set(theirs.arrays)
        for name, a in mine.arrays.items():
            b = theirs.arrays[name]
            assert a.dtype == b.dtype
            if np.issubdtype(a.dtype, np.integer):
                np.testing.assert_array_equal(a, b, err_msg=name)
            else:
                # Of changes with a sign little may be left; what was added is as large as others.
                atol = rtol * np.abs(a).max() if name in SIGNED else 0
                np.testing.assert_allclose(b, a, rtol=rtol, atol=atol, err_msg=name)


def only_one_says(said: Sequence[Mapping[str, Any]], kind: str) -> str:
    """The line of the one process that says what failed; the others end silently."""
    kinds = sorted(one.get("error", "none") for one in said)
    assert kinds == sorted([kind, *["ElsewhereError"] * (len(said) - 1)]), said
    return next(str(one["line"]) for one in said if one["error"] == kind)
