"""Ask a Mixture-of-Experts block what its router does: run it once on random numbers.

The block is a copy with random router weights; its experts are a stand-in that answers whatever it
is told to, so nothing large is ever allocated. What the stand-in is handed (choice and weights) and
what the router returned (logits) say how scores are made; what becomes of its answer says whether
the block multiplies it.

T tokens, E routed experts, K chosen, H hidden size.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from moeprune.errors import UnsupportedModelError
from moeprune.observe.quiet import foreign_errors

_TOKENS = 64
_LARGEST = 2**28  # a gigabyte in float32; blocks of today have a sixth of that
CLOSE = 1e-3  # of float32 weights after a few operations; candidates differ by tens of percent


@dataclass(frozen=True, slots=True)
class Heard:
    """What a block's router and experts said to each other.

    Attributes:
        logits_TE: what the router returned first.
        ids_TK: int64 experts chosen.
        weights_TK: their weights, as the experts get them.
        scale: the factor that the block applies to the sum over the experts.
    """

    logits_TE: Tensor
    ids_TK: Tensor
    weights_TK: Tensor
    scale: float


def listen(
    block: nn.Module, *, experts: str, router: str, hidden_size: int, num_experts: int
) -> Heard:
    """Run a copy of ``block`` on seeded random hidden states.

    Args:
        block: may be on the meta device; it stays as it is.
        experts: name of the experts module in it.
        router: name of the router module in it.
        hidden_size: H.
        num_experts: E.

    Raises:
        UnsupportedModelError: the block cannot be run alone, its experts are not called with
            hidden states, choice and weights, its router does not return logits first, or the
            block does more to the experts' sum than multiply it.
    """
    kind = type(block).__name__
    block = copy.deepcopy(block).eval()
    generator = torch.Generator().manual_seed(0)
    _check_size(block, experts=experts)
    _fill(block, experts=experts, router=router, generator=generator)
    hidden_1TH = torch.randn(1, _TOKENS, hidden_size, generator=generator)
    answer_TH = torch.randn(_TOKENS, hidden_size, generator=generator)
    handed: list[tuple[Tensor, Tensor]] = []
    returned: list[Any] = []
    factor = [0.0]

    def stand_in(hidden: Tensor, *args: Any, **kwargs: Any) -> Tensor:
        if hidden.numel() != answer_TH.numel():
            raise UnsupportedModelError(
                f"the experts of a {kind} work on {hidden.shape[-1]} values a token, not on the "
                f"{hidden_size} of the model. Add a family file (docs/extend.md)."
            )
        handed.append(_choice((*args, *kwargs.values())))
        return (factor[0] * answer_TH).reshape(hidden.shape)

    block.get_submodule(experts).__dict__["forward"] = stand_in
    block.get_submodule(router).register_forward_hook(lambda _m, _i, out: returned.append(out))
    outputs = []
    with (
        torch.no_grad(),
        foreign_errors(
            f"a {kind} cannot be run alone",
            "Add a family file (docs/extend.md).",
            error=UnsupportedModelError,
        ),
    ):
        for factor[0] in (0.0, 1.0, 2.0):
            output = block(hidden_1TH)
            first = output[0] if isinstance(output, tuple | list) else output
            outputs.append(first.reshape(_TOKENS, -1))
    if len(handed) != 3 or len(returned) != 3:
        raise UnsupportedModelError(
            f"a {kind} runs its router {len(returned) / 3:g} times and its experts "
            f"{len(handed) / 3:g} times, not once each. Add a family file (docs/extend.md)."
        )
    said = returned[0][0] if isinstance(returned[0], tuple | list) else returned[0]
    ids_TK, weights_TK = handed[0]
    good = isinstance(said, Tensor) and said.is_floating_point() and said.ndim >= 2
    if not good or said.reshape(-1, said.shape[-1]).shape != (_TOKENS, num_experts):
        raise UnsupportedModelError(
            f"the router of a {kind} does not return one logit for each of its {num_experts} "
            "experts. Add a family file (docs/extend.md)."
        )
    if ids_TK.shape[0] != _TOKENS or int(ids_TK.max()) >= num_experts:
        raise UnsupportedModelError(
            f"the experts of a {kind} are not called with one choice a token. Add a family file "
            "(docs/extend.md)."
        )
    return Heard(
        logits_TE=said.reshape(_TOKENS, num_experts),
        ids_TK=ids_TK,
        weights_TK=weights_TK,
        scale=_scale(outputs, answer_TH, kind=kind),
    )


def _choice(values: tuple[Any, ...]) -> tuple[Tensor, Tensor]:
    tensors = [value for value in values if isinstance(value, Tensor) and value.ndim == 2]
    ids = [value for value in tensors if not value.is_floating_point()]
    weights = [value for value in tensors if value.is_floating_point()]
    if len(ids) != 1 or len(weights) != 1 or ids[0].shape != weights[0].shape:
        raise UnsupportedModelError(
            "the experts are not called with the router's choice and its weights. Add a family "
            "file (docs/extend.md)."
        )
    return ids[0].long(), weights[0]


def _scale(outputs: list[Tensor], answer_TH: Tensor, *, kind: str) -> float:
    nothing, once, twice = (output.double() for output in outputs)
    one, two, answer = once - nothing, twice - nothing, answer_TH.double()
    scale = (
        float((one * answer).sum() / (answer * answer).sum()) if one.shape == answer.shape else 0
    )
    wrong = one.shape != answer.shape or max(
        float((one - scale * answer).abs().max()), float((two - 2 * scale * answer).abs().max())
    ) > CLOSE * abs(scale)
    if wrong or scale <= 0:
        raise UnsupportedModelError(
            f"a {kind} does more to what its experts add together than multiply it. Add a family "
            "file (docs/extend.md)."
        )
    return scale


def _check_size(block: nn.Module, *, experts: str) -> None:
    values = sum(
        tensor.numel()
        for name, tensor in (*block.named_parameters(), *block.named_buffers())
        if not name.startswith(f"{experts}.")
    )
    if values > _LARGEST:
        raise UnsupportedModelError(
            f"a {type(block).__name__} has {values} values beside its experts, too many to try it "
            "out. Add a family file (docs/extend.md)."
        )


def _fill(block: nn.Module, *, experts: str, router: str, generator: torch.Generator) -> None:
    """Random router weights and biases; zero matrices and unit norms elsewhere; no experts."""
    for path, module in block.named_modules():
        in_router = path == router or path.startswith(f"{router}.")
        in_experts = path == experts or path.startswith(f"{experts}.")
        for held in (module._parameters, module._buffers):
            for name, old in held.items():
                if old is None or (in_experts and old.ndim > 1):
                    continue
                held[name] = _value(name, old, random=in_router, generator=generator)


def _value(name: str, old: Tensor, *, random: bool, generator: torch.Generator) -> Tensor:
    if not old.is_floating_point():
        value = torch.zeros(old.shape, dtype=old.dtype)
    elif "bias" in name:
        value = 0.1 * torch.randn(old.shape, generator=generator)
    elif old.ndim > 1:
        # Logits of standard deviation 2: far apart, and no score is rounded to 0 or 1.
        value = torch.zeros(old.shape)
        if random:
            value = 2 * torch.randn(old.shape, generator=generator) / max(old.shape) ** 0.5
    else:
        value = torch.ones(old.shape)
    is_parameter = isinstance(old, nn.Parameter)
    return nn.Parameter(value, requires_grad=False) if is_parameter else value
