"""Gradients through layers that run a second time, against plain autograd, on graphs of any shape.

T tokens, H hidden size.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from moeprune.errors import UnsupportedModelError
from moeprune.observe.loss.cuts import cut, frozen, sweeping

H = 6


class Layer(nn.Module):
    """A layer, with a factor of its own whose gradient is what experts would report."""

    def __init__(self) -> None:
        super().__init__()
        self.mix = nn.Linear(H, H)
        self.seen: list[Tensor] = []

    def forward(self, hidden_TH: Tensor, *more: Tensor, **named: Any) -> Any:
        factor = torch.ones((), dtype=hidden_TH.dtype, requires_grad=torch.is_grad_enabled())
        if factor.requires_grad:
            factor.register_hook(self.seen.append)
        mixed_TH = torch.tanh(self.mix(hidden_TH)) * factor
        for other in more:
            mixed_TH = mixed_TH * (1 + other)
        if (shared := named.get("shared")) is not None:
            mixed_TH = mixed_TH + sum(shared.values())
            if named.get("writes"):
                shared[len(shared)] = mixed_TH.cos()
        return (hidden_TH + mixed_TH, mixed_TH.sin()) if named.get("both") else mixed_TH


def model() -> nn.ModuleList:
    torch.manual_seed(0)
    return nn.ModuleList(Layer() for _ in range(5)).double()


def chain(layers: nn.ModuleList, x: Tensor) -> Tensor:
    for layer in layers:
        x = x + layer(x)
    return x


def long_ways(layers: nn.ModuleList, x: Tensor) -> Tensor:
    first = layers[0](x)
    between = (first * 2).relu()  # shared by three, with a graph of its own
    second = layers[1](between)
    third = layers[2](between, second)
    fourth = layers[3](third + first, between)
    return layers[4](fourth) * second + between + first


def several_outputs(layers: nn.ModuleList, x: Tensor) -> Tensor:
    x, extra = layers[0](x, both=True)
    for layer in list(layers)[1:]:
        x, extra = layer(x, extra[:, :1], both=True)
    return x.square() + extra


def shared_mapping(layers: nn.ModuleList, x: Tensor) -> Tensor:
    shared: dict[int, Tensor] = {}
    for number, layer in enumerate(layers):
        x = x + layer(x, shared=shared, writes=number in (0, 2))
    return x


def twice_around(layers: nn.ModuleList, x: Tensor) -> Tensor:
    return chain(layers, chain(layers, x).sin())


def views(layers: nn.ModuleList, x: Tensor) -> Tensor:
    parts = layers[0](x)
    for layer in list(layers)[1:]:
        parts = torch.cat([layer(parts[:2]), layer(parts[2:], parts[2:])])
    return parts


def dead_end(layers: nn.ModuleList, x: Tensor) -> Tensor:
    x = layers[0](x)
    layers[1](x)  # nobody wants it
    return layers[3](layers[2](x))


WAYS = (chain, long_ways, several_outputs, shared_mapping, twice_around, views, dead_end)


@pytest.mark.parametrize("way", WAYS)
def test_any_order_of_layers(way: Callable[..., Tensor]) -> None:
    layers = model()
    x = torch.randn(4, H, dtype=torch.float64)
    target = torch.randn(4, H, dtype=torch.float64)
    (way(layers, x) * target).sum().backward()
    want = [sorted(float(one) for one in layer.seen) for layer in layers]
    named = [(f"layer {number}", layer, True) for number, layer in enumerate(layers)]
    for layer in layers:
        layer.zero_grad()
        layer.seen.clear()
    with frozen(layers), cut(named), sweeping() as sweep:
        (way(layers, x) * target).sum().backward(retain_graph=True)
        sweep.back()
    assert not len(sweep.kept)
    assert sum(map(len, want)) >= 3 and all(weight.grad is None for weight in layers.parameters())
    assert all(weight.requires_grad for weight in layers.parameters())
    for layer, wanted in zip(layers, want, strict=True):
        assert sorted(float(one) for one in layer.seen) == pytest.approx(wanted, rel=1e-12)


def test_what_stands_before_the_first_experts_runs_once() -> None:
    layers = model()
    calls = [0] * 5
    for number, layer in enumerate(layers):
        layer.mix.register_forward_hook(lambda *_, at=number: calls.__setitem__(at, calls[at] + 1))
    named = [(str(number), layer, number == 2) for number, layer in enumerate(layers)]
    with frozen(layers), cut(named), sweeping() as sweep:
        out = layers[4](layers[3](layers[2](layers[1](layers[0](torch.randn(3, H).double())))))
        assert out.is_leaf and out.grad_fn is None
        out.sum().backward()
        sweep.back()
    assert calls == [1, 1, 2, 2, 2]


def test_a_layer_inside_a_layer_is_part_of_it() -> None:
    outer, inner = model()[:2]
    x = torch.randn(4, H, dtype=torch.float64)

    class Both(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            found: Tensor = outer(inner(x))
            return found

    both = Both()
    both(x).sum().backward()
    want = [float(layer.seen.pop()) for layer in (outer, inner)]
    modules = [("both", both, True), ("outer", outer, True), ("inner", inner, True)]
    with frozen(nn.ModuleList([outer, inner])), cut(modules), sweeping() as sweep:
        both(x).sum().backward()
        assert len(sweep.kept) == 1
        sweep.back()
    assert [float(layer.seen.pop()) for layer in (outer, inner)] == want


def test_a_layer_that_writes_to_its_input_is_refused() -> None:
    class Adds(nn.Module):
        def forward(self, x: Tensor) -> Tensor:
            return x.add_(1)

    adds = Adds()
    with (
        cut([("model.layers.3", adds, True)]),
        sweeping(),
        pytest.raises(UnsupportedModelError, match=r"model\.layers\.3 writes to .*--loss-aware"),
    ):
        adds(torch.zeros(2))


class Writes(nn.Module):
    """Spoils what its own derivative needs."""

    def forward(self, x: Tensor) -> Tensor:
        squared = x.square()
        sines = squared.sin()
        squared.mul_(2)
        return sines


class WithoutDerivative(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        return x * 2


class Opaque(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        found: Tensor = WithoutDerivative.apply(x)
        return found


@pytest.mark.parametrize("kind", [Writes, Opaque])
def test_what_autograd_cannot_follow_is_refused(kind: type[nn.Module]) -> None:
    first, odd = Layer().double(), kind()
    layers = [("model.layers.0", first, True), ("model.layers.1", odd, True)]
    with frozen(first), cut(layers), sweeping() as sweep:
        odd(first(torch.randn(4, H, dtype=torch.float64))).sum().backward()
        with pytest.raises(UnsupportedModelError, match=r"^model\.layers\.1 cannot .*--loss-aware"):
            sweep.back()


def test_outside_of_a_pass_nothing_is_kept() -> None:
    layers = model()
    x = torch.randn(4, H, dtype=torch.float64)
    want = chain(layers, x)
    with cut([(str(number), layer, True) for number, layer in enumerate(layers)]):
        assert torch.equal(chain(layers, x), want)
        assert chain(layers, x).grad_fn is not None
    assert all("forward" not in layer.__dict__ for layer in layers)


def test_hooks_on_a_layer_see_it_once_and_what_they_change_counts() -> None:
    layers = model()
    x = torch.randn(4, H, dtype=torch.float64)
    for layer in layers:
        layer.register_forward_pre_hook(lambda _, inputs: (inputs[0] * 2, *inputs[1:]))
        layer.register_forward_hook(lambda _, inputs, output: output * inputs[0].sin())
    chain(layers, x).sum().backward()
    want = [float(layer.seen.pop()) for layer in layers]
    named = [(str(number), layer, True) for number, layer in enumerate(layers)]
    with frozen(layers), cut(named), sweeping() as sweep:
        chain(layers, x).sum().backward(retain_graph=True)
        sweep.back()
    assert [float(layer.seen.pop()) for layer in layers] == pytest.approx(want, rel=1e-12)
