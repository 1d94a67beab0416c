"""A backward pass through a model that keeps of each layer its inputs alone.

Every layer is a cut. Forward, it runs without autograd; what it gives becomes leaves, from which
autograd follows what the model does between its layers and after the last. Backward, from the last
call to the first, a layer runs again, now under autograd, takes its leaves' gradients back to its
inputs, and hands those on to whatever made them: leaves of former layers, directly or through what
lies between. All that a layer's leaves go into runs after it, so at its turn their gradients are
complete, whatever the order of layers is. In memory are the inputs of all layers and the graph of
one.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from moeprune.errors import UnsupportedModelError
from moeprune.observe.loss.kept import Kept
from moeprune.observe.loss.nests import Containers, mapped, tensors


@dataclass(frozen=True, slots=True)
class Cut:
    """A call of a layer.

    Attributes:
        name: of the layer, for messages.
        module: the layer.
        inputs: the arguments, and the named ones, as they were before it ran.
        leaves: what it gave and what it wrote to containers, floating-point tensors as leaves.
    """

    name: str
    module: nn.Module
    inputs: tuple[Any, Any]
    leaves: Any


@dataclass(slots=True)
class Sweep:
    """A forward pass and its way back.

    Attributes:
        kept: the calls so far.
        inside: a layer runs; layers in it are a part of it.
    """

    kept: Kept = field(default_factory=Kept)
    inside: bool = False

    def back(self) -> None:
        """Take the gradients of the leaves back to the first layer; each layer runs again."""
        while self.kept:
            self._back_through(self.kept.pop())

    def _back_through(self, cut: Cut) -> None:
        gradients = [_taken(leaf) for leaf in tensors(cut.leaves)]
        if all(gradient is None for gradient in gradients):
            return
        fresh: dict[int, tuple[Tensor, Tensor]] = {}

        def again(value: Tensor) -> Tensor:
            if not value.requires_grad:
                return value
            if id(value) not in fresh:
                fresh[id(value)] = (value, value.detach().requires_grad_())
            return fresh[id(value)][1]

        args, named = mapped(cut.inputs, again)
        containers = Containers((args, named))
        self.inside = True
        with torch.enable_grad():
            # Not the call: hooks on the module have seen what came in and what the leaves became.
            output = cut.module.forward(*args, **named)
        self.inside = False
        found = list(tensors((output, containers.written())))
        del output, args, named, containers
        ends, given = [], []
        for value, gradient in zip(found, gradients, strict=True):
            if gradient is not None and value.requires_grad:
                ends.append(value)
                given.append(gradient)
        if ends:
            with _followed(cut.name):
                torch.autograd.backward(ends, given)
        del found, ends, given, gradients
        for value, leaf in fresh.values():
            if leaf.grad is not None:
                # What lies between layers may be shared by several: its graph stays until all
                # that hold its end are gone.
                torch.autograd.backward(value, leaf.grad, retain_graph=True)


_NOW: ContextVar[Sweep | None] = ContextVar("sweep", default=None)


@contextlib.contextmanager
def sweeping() -> Iterator[Sweep]:
    """A forward pass inside the block is kept, for a way back; layers must be :func:`cut`."""
    sweep = Sweep()
    token = _NOW.set(sweep)
    try:
        with torch.enable_grad():
            yield sweep
    finally:
        _NOW.reset(token)


@contextlib.contextmanager
def cut(layers: Sequence[tuple[str, nn.Module, bool]]) -> Iterator[None]:
    """Inside the block, layers are cuts of the pass that is :func:`sweeping`, if one is.

    Args:
        layers: name, module and whether experts in it are observed. One without, of whose inputs
            none depends on such experts, just runs.
    """
    with contextlib.ExitStack() as undo:
        for name, module, routed in layers:
            undo.callback(put(module, functools.partial(_called, name, module, routed)))
        yield


def _called(
    name: str,
    module: nn.Module,
    routed: bool,
    forward: Callable[..., Any],
    *args: Any,
    **named: Any,
) -> Any:
    sweep = _NOW.get()
    if sweep is None or sweep.inside:
        return forward(*args, **named)
    given = [value for value in tensors((args, named)) if value.requires_grad]
    if not given and not routed:
        with torch.no_grad():
            return forward(*args, **named)
    inputs = mapped((args, named), _same)
    versions = [(value, value._version) for value in tensors(inputs)]
    containers = Containers((args, named))
    sweep.inside = True
    with torch.no_grad():
        output = forward(*args, **named)
    sweep.inside = False
    if any(value._version != version for value, version in versions):
        raise UnsupportedModelError(
            f"{name} writes to the tensors that it is given, and --loss-aware runs it a second "
            "time; calibrate this family without --loss-aware."
        )
    leaves = mapped((output, containers.written()), _leaf)
    containers.write(leaves[1])
    if leaves[1] or any(value.grad_fn is not None for value in given):
        sweep.kept.pin()
    sweep.kept.push(Cut(name, module, inputs, leaves))
    return leaves[0]


def put(
    module: nn.Module, forward: Callable[..., Any], name: str = "forward"
) -> Callable[[], None]:
    """Let an instance run ``forward(its own forward, ...)``, no class; returns what undoes it.

    Args:
        module: the instance.
        forward: see above.
        name: of the method, where it is another one.
    """
    own = module.__dict__.get(name)
    former: Callable[..., Any] = getattr(module, name)

    @functools.wraps(former)
    def called(*args: Any, **named: Any) -> Any:
        return forward(former, *args, **named)

    module.__dict__[name] = called

    def undo() -> None:
        del module.__dict__[name]
        if own is not None:
            module.__dict__[name] = own

    return undo


@contextlib.contextmanager
def frozen(model: nn.Module) -> Iterator[None]:
    """No parameter asks for a gradient inside the block; afterwards those that did do again."""
    asked = [weight for weight in model.parameters() if weight.requires_grad]
    for weight in asked:
        weight.requires_grad_(False)
    try:
        yield
    finally:
        for weight in asked:
            weight.requires_grad_(True)


@contextlib.contextmanager
def _followed(name: str) -> Iterator[None]:
    """Errors of autograd itself: of operations without a derivative, or that write over numbers."""
    try:
        yield
    except torch.OutOfMemoryError:
        raise
    except RuntimeError as problem:
        words = str(problem).partition("\n")[0].rstrip(". ")
        raise UnsupportedModelError(
            f"{name} cannot be gone back through ({words}); calibrate without --loss-aware, or "
            "where torch computes this layer by operations of its own."
        ) from problem


def _taken(leaf: Tensor) -> Tensor | None:
    gradient, leaf.grad = leaf.grad, None
    return gradient


def _leaf(value: Tensor) -> Tensor:
    value = value.detach()
    return value.requires_grad_() if value.is_floating_point() else value


def _same(value: Tensor) -> Tensor:
    return value
