"""Layers are left out only where a model allows it; elsewhere values are right all the same."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
import torch
from esap_setup import Subject
from torch import nn

from moeprune.evaluate.replay import Replay
from moeprune.observe.layers import decoder_layers


@pytest.fixture
def subject(tiny: Any) -> Subject:
    return Subject(tiny("qwen3_moe"))


def check_values(subject: Subject) -> None:
    esap = subject.esap(top_p=1.0)
    assert not esap.report.reuse
    for counts in ((2, 2, 2), (2, 2, 5)):
        assert esap.score(counts) == pytest.approx(subject.slow(counts), abs=1e-6)
    assert esap.layer_forwards == esap.layer_forwards_naive == 2 * 5 * 4


def test_layers_that_share_more_than_hidden_states(subject: Subject) -> None:
    """As where a late layer reads keys and values of an early one."""
    layers = decoder_layers(subject.model, subject.layout)
    aside: list[torch.Tensor] = []

    def put_aside(_module: Any, _args: Any, output: torch.Tensor) -> None:
        aside[:] = [output]

    def add(_module: Any, _args: Any, output: torch.Tensor) -> torch.Tensor:
        return output + aside[0]

    layers[0].register_forward_hook(put_aside)
    layers[3].register_forward_hook(add)
    reason = subject.esap().report.reason
    assert reason.startswith("logits differ by") and "layer 2" in reason
    check_values(subject)


def test_a_layer_that_never_runs(subject: Subject) -> None:
    """As next-token-prediction layers behind the last one."""
    layers = (*decoder_layers(subject.model, subject.layout), nn.Linear(2, 2))
    esap = subject.esap(layers=layers)
    assert esap.report.reason == "a pass runs 4 of 5 layers, or in another order"
    assert not esap.report.reuse
    assert esap.score((2, 2, 2)) == subject.esap(reuse=False).score((2, 2, 2))


def test_a_pass_that_fails_without_its_first_layers(subject: Subject) -> None:
    layers = decoder_layers(subject.model, subject.layout)
    seen: list[bool] = []

    def note(_module: Any, _args: Any) -> None:
        seen.append(True)

    def needs(_module: Any, _args: Any) -> None:
        if not seen:
            raise RuntimeError("layer 1 has not run\nsecond line")
        seen.clear()

    inner = layers[1].self_attn
    inner.register_forward_pre_hook(note)
    layers[3].self_attn.register_forward_pre_hook(needs)
    esap = subject.esap()
    assert esap.report.reason == "a pass without its first layers fails: layer 1 has not run"
    assert all("forward" not in module.__dict__ for module in subject.model.modules())
    check_values(subject)


def test_a_layer_that_writes_into_what_it_is_given(subject: Subject) -> None:
    """States are copied: what a layer does to its input does not reach the next genome."""
    layers = decoder_layers(subject.model, subject.layout)
    for layer in layers:
        layer.register_forward_hook(lambda _module, args, output: args[0].zero_() + output)
    esap = subject.esap(top_p=1.0)
    assert esap.report.reuse
    for counts in ((2, 2, 2), (2, 2, 5), (2, 2, 2), (2, 3, 5), (2, 2, 3)):
        assert esap.score(counts) == pytest.approx(subject.slow(counts), abs=1e-6)
    assert esap.layer_forwards == 5 * (4 + 1 + 0 + 2 + 1)


def test_a_forward_that_wants_a_number_of_positions(subject: Subject) -> None:
    """Own code of a checkpoint may know only how many of the last positions are wanted."""
    plain = subject.model.forward

    def forward(input_ids: Any, logits_to_keep: int = 0, **options: Any) -> Any:
        if not isinstance(logits_to_keep, int):
            raise TypeError("unsupported operand")
        return plain(input_ids=input_ids, **options)

    subject.model.forward = forward
    esap = subject.esap(top_p=1.0, logits_bytes=1)
    assert esap.report.reuse and not esap.report.in_parts
    assert esap.report.reason == "a pass without its first layers fails: unsupported operand"
    assert esap.score((2, 2, 5)) == pytest.approx(subject.slow((2, 2, 5)), abs=1e-6)


class Stack(nn.Module):
    """Layers that return a tuple, and a sum that the model itself keeps."""

    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Adds(number) for number in range(4)])

    def forward(self, hidden: torch.Tensor) -> torch.Tensor:
        beside = torch.zeros(())
        for layer in self.layers:
            hidden, (beside, _) = layer(hidden, beside)
        return hidden + beside


class Adds(nn.Module):
    def __init__(self, number: int) -> None:
        super().__init__()
        self.number = number

    def forward(self, hidden: torch.Tensor, beside: torch.Tensor) -> Any:
        return hidden * 2 + self.number, [beside + hidden.sum(), None]


@contextmanager
def own_forward(module: nn.Module) -> Iterator[None]:
    """As accelerate does: a forward of the module's own."""
    plain = module.forward
    module.forward = lambda *args, **kwargs: plain(*args, **kwargs)
    yield


def test_replay_of_tuples_from_every_layer() -> None:
    model = Stack()
    hidden = torch.arange(3.0)
    want = model(hidden)
    states: dict[int, Any] = {}
    replay = Replay(list(model.layers))
    with own_forward(model.layers[1]), replay.installed():
        own = model.layers[1].__dict__["forward"]
        replay.begin(record=range(4), sink=states.__setitem__)
        assert torch.equal(model(hidden), want)
        assert replay.called == [0, 1, 2, 3] and replay.runs == 4
        for start in range(1, 5):
            before = replay.runs
            replay.begin(start, states[start - 1])
            assert torch.equal(model(hidden), want)
            assert replay.runs - before == 4 - start
        assert model.layers[1].__dict__["forward"] is own
    assert [("forward" in layer.__dict__) for layer in model.layers] == [False, True, False, False]
    assert torch.equal(model(hidden), want)
