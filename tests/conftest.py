"""Shared fixtures: one thread for torch, and tiny checkpoints written once a session."""

from __future__ import annotations

import gc
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from hypothesis import settings

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # a test that reaches the network is a defect
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
# Programs that tests start: on shared cores torch's threads wait for each other, ten times slower.
os.environ.setdefault("OMP_NUM_THREADS", "1")

# A slow moment of a shared machine is no failure; speed is measured in tests/bench.
settings.register_profile("moeprune", deadline=None)
settings.load_profile("moeprune")

Tiny = Callable[[str], Path]


@pytest.fixture(scope="session", autouse=True)
def one_torch_thread() -> None:
    """Several workers share few cores; one thread each is fastest and repeatable."""
    import torch

    torch.set_num_threads(1)


@pytest.fixture(scope="session", autouse=True)
def imported_objects_are_not_collected(one_torch_thread: None) -> None:
    """What torch and transformers import is alive to the end; each full collection walked it."""
    import transformers.modeling_utils  # noqa: F401

    gc.collect()
    gc.freeze()


@pytest.fixture(scope="session")
def tiny(tmp_path_factory: pytest.TempPathFactory) -> Tiny:
    """``tiny(family) -> Path``: a cached checkpoint. Read only; copy it before changing it."""
    from tiny import tiny_checkpoint

    made: dict[str, Path] = {}

    def get(family: str) -> Path:
        if family not in made:
            made[family] = tiny_checkpoint(family, tmp_path_factory.mktemp(family) / family)
        return made[family]

    return get


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many listed families passed every test that ran, and the other loaders' figures.

    Here and not there: with several workers, the process that prints reads this file alone.
    """
    good, bad = set(), set()
    for outcome in ("passed", "failed", "error"):
        for report in terminalreporter.stats.get(outcome, ()):
            for key, value in getattr(report, "user_properties", ()):
                if key == "family":
                    (good if outcome == "passed" else bad).add(value)
                elif key == "figure":
                    terminalreporter.write_line(f"{outcome}: {value}")
    if good or bad:
        facts = Path(__file__).parent / "architectures" / "facts.json"
        listed = {fact["entry"] for fact in json.loads(facts.read_text(encoding="utf-8"))}
        failed = f", failed: {', '.join(sorted(bad))}" if bad else ""
        terminalreporter.write_line(f"families: {len(good - bad)}/{len(listed)}{failed}")
