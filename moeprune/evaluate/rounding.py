"""How far rounding alone moves a model's logits: the least by which two exact forms may differ.

A pruned model adds up its experts in other groups than the masked one, so their outputs differ in
the last digits; what the model makes of that is its own affair. Measured on tiny random models of
14 families, a rounding put on by hand moves the logits as far as an export does, within a factor of
three either way.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import nn

from moeprune.evaluate.logits import compare_logits, prompt_logits

_DRAWS = 2


@contextmanager
def rounded_anew(modules: Sequence[nn.Module], *, seed: int) -> Iterator[None]:
    """Within the block, outputs of ``modules`` are off by a rounding of their type.

    Every number moves up or down by the type's epsilon times the largest of its row (the last
    axis). Of several outputs it is the first.

    Args:
        modules: of a live model; how they are called does not matter.
        seed: of the directions.
    """
    generator = torch.Generator().manual_seed(seed)

    def moved(_: nn.Module, __: Any, output: Any) -> Any:
        first = output if isinstance(output, torch.Tensor) else output[0]
        sign = torch.randint(0, 2, first.shape, generator=generator).to(first) * 2 - 1
        step = torch.finfo(first.dtype).eps * first.abs().amax(dim=-1, keepdim=True)
        changed = first + step * sign
        return changed if isinstance(output, torch.Tensor) else (changed, *output[1:])

    # The same module may stand in several stacks of layers: once is enough.
    handles = [
        module.register_forward_hook(moved)
        for module in {id(module): module for module in modules}.values()
    ]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def rounding_noise(
    model: Any,
    prompts: Sequence[Sequence[int]],
    reference: Sequence[torch.Tensor],
    *,
    experts: Sequence[nn.Module],
) -> float:
    """Largest difference of the logits from ``reference`` when the experts' outputs round anew.

    Args:
        model: as it made ``reference``, masks included.
        prompts: those of ``reference``.
        reference: from :func:`moeprune.evaluate.logits.prompt_logits`.
        experts: the modules that hold the experts.
    """
    found = 0.0
    for seed in range(_DRAWS):
        with rounded_anew(experts, seed=seed):
            found = max(found, compare_logits(reference, prompt_logits(model, prompts)).largest)
    return found
