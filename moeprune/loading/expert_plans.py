"""Which stored 4-bit weights make up which parameter of a model, by transformers' own mappings.

A family's mapping says how the weights of single experts become one parameter of all: which
names, in what order, by which operations. Nothing of it is known here; it is asked, with the names
that are stored.
"""

import copy
import logging
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from transformers import core_model_loading

from moeprune.loading.four_bit_layout import Arrange, FourBitLayout, QuantState
from moeprune.loading.packed_experts import is_packable

_STATE = ".quant_state.bitsandbytes__"


@dataclass
class ExpertPlan:
    """How one parameter comes out of stored weights.

    Attributes:
        target: its name in the model, where transformers looks for it.
        patterns: the names that the mapping knows the weights of an expert by; ``("",)`` without.
        weights: of each pattern, the stored weights in the order of the experts.
        converter: the mapping's; None: the stored weight is the parameter.
        layout: how the bytes lie in the model; None: it gets plain numbers.
    """

    target: str
    patterns: tuple[str, ...]
    weights: tuple[list[str], ...]
    converter: Any
    layout: FourBitLayout | None = None


def four_bit_kinds(names: Iterable[str]) -> dict[str, str]:
    """Stored weight -> ``"nf4"`` or ``"fp4"``, of all that are stored in four bits."""
    found = (name.partition(_STATE) for name in names)
    return {weight: kind for weight, state, kind in found if state}


def state_name(weight: str, kind: str) -> str:
    """The name of the tensor that holds a weight's JSON."""
    return f"{weight}{_STATE}{kind}"


def expert_plans(weights: Iterable[str], mappings: list[Any], model: nn.Module) -> list[ExpertPlan]:
    """What becomes of these stored weights: a plan for each parameter that they make up.

    Args:
        weights: stored names.
        mappings: transformers' renamings and converters for the model.
        model: on the meta device, before anything is packed.
    """
    mappings = copy.deepcopy(mappings)  # asking them leaves traces
    renamings, converters = split_mappings(mappings)
    by_pattern = {pattern: one for one in converters for pattern in one.source_patterns}
    shapes = model.state_dict()
    prefix = getattr(model, "base_model_prefix", "")
    found: dict[str, dict[str, list[str]]] = {}
    for weight in sorted(weights, key=core_model_loading.dot_natural_key):
        target, pattern = core_model_loading.rename_source_key(
            weight, renamings, converters, prefix, shapes
        )
        if target in shapes:
            found.setdefault(target, {}).setdefault(pattern or "", []).append(weight)
    plans = []
    for target, sources in found.items():
        converter = by_pattern.get(next(iter(sources)))
        known = [""] if converter is None else converter.source_patterns
        patterns = tuple(pattern for pattern in known if pattern in sources)
        plans.append(
            ExpertPlan(target, patterns, tuple(map(sources.__getitem__, patterns)), converter)
        )
    return plans


def split_mappings(mappings: Iterable[Any]) -> tuple[list[Any], list[Any]]:
    """Renamings and converters, as transformers keeps them apart."""
    each = list(mappings)
    return (
        [one for one in each if isinstance(one, core_model_loading.WeightRenaming)],
        [one for one in each if isinstance(one, core_model_loading.WeightConverter)],
    )


def packed_layout(
    plan: ExpertPlan, model: nn.Module, state: Callable[[str], QuantState]
) -> FourBitLayout | None:
    """How the parameter's weights can stay packed; None: they cannot.

    Args:
        plan: of the parameter.
        model: on the meta device.
        state: of a stored weight.
    """
    module = model.get_submodule(plan.target.rpartition(".")[0])
    parameter = model.get_parameter(plan.target)
    experts = parameter.shape[0]
    if plan.converter is None or parameter.ndim != 3 or not is_packable(module):
        return None
    if len(plan.converter.target_patterns) != 1 or {*map(len, plan.weights)} != {experts}:
        return None
    states = tuple(state(weights[0]) for weights in plan.weights)
    if any(len(one.shape) != 2 for one in states):
        return None
    arrange = _arrangement(plan, model)
    shape, dtype = tuple(parameter.shape), parameter.dtype
    if arrange is None:
        rows = sum(one.shape[0] for one in states)
        fits = all((rows, one.shape[1]) == shape[1:] for one in states)
    else:
        fits = _is_by_expert(arrange, states, shape)
    return FourBitLayout(states, shape, dtype, arrange) if fits else None


def _arrangement(plan: ExpertPlan, model: nn.Module) -> Arrange | None:
    """What the mapping does to matrices; None: it puts them below each other."""
    converter, operations = plan.converter, plan.converter.operations
    asked = _Asked(model.get_parameter(plan.target))
    config = model.config
    plain = [("MergeModulelist", 0), ("Concatenate", 1)]
    steps = [(type(one).__name__, getattr(one, "dim", None)) for one in operations]
    if steps == plain[: 1 if len(plan.patterns) == 1 else 2]:
        return None

    def arrange(each: list[list[torch.Tensor]]) -> torch.Tensor:
        collected: Any = dict(zip(plan.patterns, each, strict=True))
        for operation in operations:
            collected = operation.convert(
                collected,
                source_patterns=converter.source_patterns,
                target_patterns=converter.target_patterns,
                full_layer_name=plan.target,
                model=asked,
                config=config,
                missing_keys=None,
            )
        (made,) = collected.values()
        result: torch.Tensor = made[0] if isinstance(made, list) else made
        return result

    return arrange


class _Asked:
    """What operations see of a model: the parameter that they make, which packing takes away."""

    def __init__(self, parameter: torch.Tensor) -> None:
        self._parameter = parameter

    def get_parameter(self, _: str) -> torch.Tensor:
        """The parameter, on the meta device."""
        return self._parameter


def _is_by_expert(arrange: Arrange, states: tuple[QuantState, ...], shape: tuple[int, ...]) -> bool:
    """Whether the operations treat every expert by itself, so that one of them can be asked for."""
    experts = min(2, shape[0])
    each = [[torch.randn(state.shape) for _ in range(experts)] for state in states]
    try:
        whole = arrange([list(one) for one in each])
        alone = [arrange([[one[number]] for one in each]) for number in range(experts)]
    except (AttributeError, IndexError, KeyError, RuntimeError, TypeError, ValueError) as problem:
        logging.getLogger(__name__).debug("operations do not run on one expert: %s", problem)
        return False
    return tuple(whole.shape) == (experts, *shape[1:]) and torch.equal(whole, torch.cat(alone))
