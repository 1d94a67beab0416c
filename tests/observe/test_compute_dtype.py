"""The number type that a model stored in 16 bits is run in: what is measured decides, clearly."""

from __future__ import annotations

import time
from types import SimpleNamespace

import pytest
import torch

from moeprune.observe import compute_dtype
from moeprune.observe.compute_dtype import Choice, choose, slowdown

CPU = torch.device("cpu")


@pytest.mark.parametrize("slower", [0.5, 1.0, 1.4])
@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_about_as_fast_stays(slower: float, stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_dtype, "slowdown", lambda *_: slower)
    assert choose(stored, device=CPU, bytes_wide=1, room=1) == Choice("auto")


@pytest.mark.parametrize("stored", ["bfloat16", "float16"])
def test_slow_numbers(stored: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compute_dtype, "slowdown", lambda *_: 4.6)
    found = choose(stored, device=CPU, bytes_wide=10**9, room=10**9)
    assert found.dtype == "float32"
    assert found.reason == (
        f"computing in float32: {stored} takes 4.6 times as long as float32 on this CPU. "
        f"--dtype {stored} computes as stored."
    )
    found = choose(stored, device=CPU, bytes_wide=10**9 + 1, room=10**9)
    assert found.dtype == "auto"
    assert found.reason == (
        f"computing in {stored}: {stored} takes 4.6 times as long as float32 on this CPU, but "
        "float32 takes 1.0 GB and there are 1.0 GB."
    )


@pytest.mark.parametrize(
    ("stored", "device"), [("float32", CPU), ("float64", CPU), ("odd", CPU), ("bfloat16", None)]
)
def test_nothing_is_measured(
    stored: str, device: torch.device | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(compute_dtype, "slowdown", None)
    assert choose(stored, device=device, bytes_wide=1, room=10) == Choice("auto")


@pytest.mark.parametrize(("real", "slower"), [(True, 1.0), (False, float("inf"))])
def test_gpus_are_asked(real: bool, slower: float, monkeypatch: pytest.MonkeyPatch) -> None:
    def supported(*, including_emulation: bool) -> bool:
        return real or including_emulation

    monkeypatch.setattr(torch.cuda, "is_bf16_supported", supported)
    gpu = torch.device("cuda")
    assert (slowdown("bfloat16", gpu), slowdown("float16", gpu)) == (slower, 1.0)
    if not real:
        reason = choose("bfloat16", device=gpu, bytes_wide=1, room=1).reason
        assert reason.startswith("computing in float32: this GPU has no bfloat16 of its own.")


def test_the_clock_decides(monkeypatch: pytest.MonkeyPatch) -> None:
    """On a processor that takes three times as long for one type, with now and then a hiccup."""
    calls: list[torch.dtype] = []
    now = 100.0

    def linear(rows: torch.Tensor, weight: torch.Tensor) -> None:
        nonlocal now
        assert rows.dtype == weight.dtype
        calls.append(rows.dtype)
        slow = 3 if rows.dtype == torch.float16 else 1
        now += 0.004 * slow + (0.05 if len(calls) in (1, 2, 5) else 0)

    monkeypatch.setattr(compute_dtype, "linear", linear)
    monkeypatch.setattr(compute_dtype, "time", SimpleNamespace(perf_counter=lambda: now))
    assert slowdown("float16", CPU) == pytest.approx(3)
    assert calls[:4] == [torch.float32, torch.float16] * 2


def test_here() -> None:
    """Whatever this processor is, the answer is a number, in no time."""
    start = time.process_time()
    assert 0.05 < slowdown("bfloat16", CPU) < 100
    assert time.process_time() - start < 5
