"""Ctrl-C and SIGTERM on ``moeprune calibrate``, as a terminal or a scheduler sends them."""

from __future__ import annotations

import json
import os
import signal
import time
from pathlib import Path
from typing import Any

import forked
import pytest


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM], ids=lambda s: s.name)
def test_a_signal_finishes_the_batch_and_keeps_it(
    number: signal.Signals, tiny: Any, tmp_path: Path
) -> None:
    text = tmp_path / "d.jsonl"
    text.write_text("".join(json.dumps({"text": f"{row} " * 40}) + "\n" for row in range(2000)))
    command = ["-m", "moeprune", "calibrate", str(tiny("qwen3_moe"))]
    command += ["-o", "s", "--domain", "d=d.jsonl", "--batch-tokens", "100", "--device", "cpu"]
    job = forked.start(command, cwd=tmp_path)
    for _ in range(600):
        if (tmp_path / "s.progress").exists():
            break
        time.sleep(0.1)
    job.send_signal(number)
    out, err = job.communicate(timeout=60)
    assert job.returncode == 130, err
    assert out == ""
    assert "stopping, with what is measured kept" in err
    assert "s.progress holds it: the same command goes on from there" in err
    assert "Traceback" not in err
    assert not (tmp_path / "s").exists()


def test_a_signal_that_is_ignored_stays_ignored() -> None:
    """So shells start what runs in the background of a script."""
    from moeprune.cli.interrupt import finishing

    former = signal.signal(signal.SIGINT, signal.SIG_IGN)
    try:
        with finishing() as stop:
            os.kill(os.getpid(), signal.SIGINT)
            assert not stop()
            assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
            os.kill(os.getpid(), signal.SIGTERM)
            assert stop()
        assert signal.getsignal(signal.SIGINT) is signal.SIG_IGN
    finally:
        signal.signal(signal.SIGINT, former)
