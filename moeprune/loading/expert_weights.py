"""Stored 4-bit weights -> the parameters of a model, packed or plain, and back into a file."""

import copy
from collections import defaultdict
from collections.abc import Iterable
from concurrent.futures import Future
from typing import Any

import torch
from torch import nn
from transformers import core_model_loading

from moeprune.loading.expert_plans import ExpertPlan, split_mappings, state_name
from moeprune.loading.four_bit import four_bit_numbers, nested_absmax
from moeprune.loading.four_bit_layout import FourBitLayout, QuantState
from moeprune.loading.stored_bytes import ByteReader, StoredBytes

_FOUND = "moeprune_four_bit_weights"


class FourBitConverter(core_model_loading.WeightConverter):
    """All 4-bit weights of a checkpoint that are for transformers' mappings, by their exact names.

    One for a whole model; transformers copies it for every parameter and hands it the tensors.

    Args:
        plans: the name that transformers collects tensors under -> what becomes of them.
        names: stored name -> such a name, of the weights and all that stands beside them.
        kinds: weight -> ``"nf4"`` or ``"fp4"``.
        places: where the bytes of stored tensors lie.
        mappings: transformers' for the model.
        quantizer: whose presence tells transformers to leave the numbers' types alone.
        direct: whether all is for the CPU, so that bytes are read from the files into their place.
    """

    def __init__(
        self,
        plans: dict[str, ExpertPlan],
        names: dict[str, str],
        kinds: dict[str, str],
        places: dict[str, StoredBytes],
        mappings: list[Any],
        quantizer: Any,
        *,
        direct: bool,
    ) -> None:
        super().__init__([_FOUND], [_FOUND], [_Marker(quantizer)])
        self.plans, self.kinds, self.places, self.direct = plans, kinds, places, direct
        renamings, _ = split_mappings(copy.deepcopy(mappings))
        # Converters are asked for a name after all renamings, which may depend on those before.
        self.renamed = {
            name: core_model_loading.apply_renamings(name, renamings)
            for name in sorted(names, key=core_model_loading.dot_natural_key)
        }
        self.names = {self.renamed[name]: target for name, target in names.items()}
        self.due: dict[str, set[str]] = defaultdict(set)
        for name, target in names.items():
            self.due[target].add(name)

    def __deepcopy__(self, memo: dict[int, Any]) -> "FourBitConverter":
        fresh = copy.copy(self)
        fresh.collected_tensors, fresh.layer_targets = defaultdict(list), defaultdict(set)
        return fresh

    def rename_source_key(self, source_key: str) -> tuple[str, str | None]:
        """The parameter that a stored tensor goes into."""
        target = self.names.get(source_key)
        if target is None:
            return source_key, None
        self._was_used = True
        return target, _FOUND

    def reverse_transform(self) -> Any:
        """What writes the packed weights as they were stored."""
        return _FourBitSaver(self)

    def add_tensor(
        self, target_key: str, source_key: str, source_pattern: str, future: Any
    ) -> None:
        """Keep a tensor, or what will give it, by its stored name."""
        self.layer_targets[target_key].add(source_key)
        if self.direct:
            # It is read later. Mapping it would bring pages of the file in, for nothing.
            future = future.cancel() if isinstance(future, Future) else None
        self.collected_tensors[source_key].append(future)

    def convert(self, layer_name: str, model: Any = None, **_: Any) -> dict[str, torch.Tensor]:
        """Parameter -> values, from the tensors that transformers has collected for it."""
        plan = self.plans[layer_name]
        absent = self.due[layer_name] - self.collected_tensors.keys()
        if absent:
            raise ValueError(f"{plan.target}: {min(absent)} is not there.")
        found: dict[str, torch.Tensor] = {}
        if not self.direct:
            found = {name: each[0] for name, each in self.materialize_tensors().items()}
        self.collected_tensors.clear()
        with ByteReader() as reader:
            stored = _Stored(found, self.kinds, self.places, reader)
            if plan.layout is not None:
                packed = _packed(plan, plan.layout, stored)
                return {plan.target + suffix: frozen(values) for suffix, values in packed.items()}
            return _plain(plan, stored, model)


class _FourBitSaver(core_model_loading.WeightConverter):
    """Writes packed parameters as the weights that they were read from, byte for byte."""

    def __init__(self, loader: FourBitConverter) -> None:
        packed = {p.target: p for p in loader.plans.values() if p.layout is not None}
        suffixes = {s for p in packed.values() if p.layout for s in p.layout.tensors()}
        super().__init__(sorted(suffixes) or [_FOUND], [_FOUND], [_Marker(None)])
        self.loader = loader
        self.names = {
            target + suffix: (target, suffix)
            for target, plan in packed.items()
            for suffix in (plan.layout.tensors() if plan.layout else ())
        }

    def __deepcopy__(self, memo: dict[int, Any]) -> "_FourBitSaver":
        return _FourBitSaver(self.loader)

    def rename_source_key(self, source_key: str) -> tuple[str, str | None]:
        """The parameter that a tensor is part of."""
        return self.names.get(source_key, (source_key, None))

    def convert(self, layer_name: str, **_: Any) -> dict[str, torch.Tensor]:
        """Stored name -> tensor."""
        plan = next(p for p in self.loader.plans.values() if p.target == layer_name)
        assert plan.layout is not None
        made = {suffix: each[0] for suffix, each in self.materialize_tensors().items()}
        absent = plan.layout.tensors().keys() - made.keys()
        if absent:
            raise ValueError(
                f"{layer_name}{min(absent)} is saved apart from the rest of its weight."
            )
        found: dict[str, torch.Tensor] = {}
        for expert, weights in enumerate(zip(*plan.weights, strict=True)):
            at = [0, 0, 0]
            for number, (weight, state) in enumerate(zip(weights, plan.layout.states, strict=True)):
                ends = [start + size for start, size in zip(at, state.sizes, strict=True)]
                rows = [slice(*span) for span in zip(at, ends, strict=True)]
                found[weight] = made["_packed"][expert, rows[0], None]
                found[f"{weight}.absmax"] = made["_absmax"][expert, rows[1]]
                found[f"{weight}.quant_map"] = made["_quant_map"].clone()
                offset = 0.0
                if "_nested_absmax" in made:
                    found[f"{weight}.nested_absmax"] = made["_nested_absmax"][expert, rows[2]]
                    found[f"{weight}.nested_quant_map"] = made["_nested_quant_map"].clone()
                    offset = float(made["_nested_offset"][expert, number])
                text = torch.tensor([*state.text(offset)], dtype=torch.uint8)
                found[state_name(weight, state.kind)] = text
                at = ends
        return {self.loader.renamed[name]: values for name, values in found.items()}


class _Marker(core_model_loading.ConversionOps):
    """Tells transformers that the tensors are not numbers of the model's type."""

    def __init__(self, quantizer: Any) -> None:
        self.hf_quantizer = quantizer

    def convert(self, input_dict: Any, **_: Any) -> Any:
        """Nothing: the converter does it all."""
        return input_dict


class _Stored:
    """The tensors of one parameter; those that were not loaded are read from the file, once."""

    def __init__(
        self,
        tensors: dict[str, torch.Tensor],
        kinds: dict[str, str],
        places: dict[str, StoredBytes],
        reader: ByteReader,
    ) -> None:
        self._tensors, self._kinds, self._places, self._reader = tensors, kinds, places, reader
        first = next(iter(tensors.values()), None)
        self.device = torch.device("cpu") if first is None else first.device

    def fill(self, name: str, target_G: torch.Tensor) -> None:
        """Put the bytes of a stored tensor into ``target_G``, uint8."""
        if name in self._tensors:
            target_G.copy_(self._tensors[name].reshape(-1).view(torch.uint8))
        else:
            self._reader.into(self._places[name], target_G)

    def read(self, name: str, dtype: torch.dtype) -> torch.Tensor:
        """The numbers of a stored tensor, one after the other."""
        found = torch.empty(self._places[name].count, dtype=torch.uint8, device=self.device)
        self.fill(name, found)
        return found.view(dtype)

    def state(self, weight: str) -> QuantState:
        """What is noted beside a weight."""
        kind = self._kinds[weight]
        text = self.read(state_name(weight, kind), torch.uint8)
        return QuantState.read(bytes(text.tolist()), kind)


def _packed(plan: ExpertPlan, layout: FourBitLayout, stored: _Stored) -> dict[str, torch.Tensor]:
    """What follows the parameter's name -> the tensor there, filled from the file in pieces."""
    made = {
        suffix: torch.empty(shape, dtype=dtype, device=stored.device)
        for suffix, (shape, dtype) in layout.tensors().items()
    }
    first = plan.weights[0][0]
    stored.fill(f"{first}.quant_map", made["_quant_map"].view(torch.uint8))
    nested = "_nested_absmax" in made
    if nested:
        name = f"{first}.nested_quant_map"
        stored.fill(name, made["_nested_quant_map"].view(torch.uint8))
    for expert, weights in enumerate(zip(*plan.weights, strict=True)):
        at = [0, 0, 0]
        for number, (weight, wanted) in enumerate(zip(weights, layout.states, strict=True)):
            state = stored.state(weight)
            if _but_for_offset(state) != _but_for_offset(wanted):
                raise ValueError(f"{weight} is stored as {state}, expert 0 as {wanted}.")
            ends = [start + size for start, size in zip(at, state.sizes, strict=True)]
            rows = [slice(*span) for span in zip(at, ends, strict=True)]
            stored.fill(weight, made["_packed"][expert, rows[0]])
            stored.fill(f"{weight}.absmax", made["_absmax"][expert, rows[1]].view(torch.uint8))
            if nested:
                outer = made["_nested_absmax"][expert, rows[2]]
                stored.fill(f"{weight}.nested_absmax", outer.view(torch.uint8))
                made["_nested_offset"][expert, number] = state.offset
            at = ends
    return made


def _but_for_offset(state: QuantState) -> tuple[Any, ...]:
    return (state.kind, state.block, state.dtype, state.shape, state.nested_block)


def _plain(plan: ExpertPlan, stored: _Stored, model: Any) -> dict[str, torch.Tensor]:
    """Parameters -> plain numbers; the experts are put where the mapping would stack them."""
    parameter = model.get_parameter(plan.target)
    dtype = parameter.dtype
    if plan.converter is None:
        return {plan.target: _numbers(plan.weights[0][0], stored).to(dtype)}
    steps = [type(one).__name__ for one in plan.converter.operations]
    merged = steps[:1] == ["MergeModulelist"]
    inner = copy.deepcopy(plan.converter)
    for pattern, weights in zip(plan.patterns, plan.weights, strict=True):
        each = (_numbers(weight, stored).to(dtype) for weight in weights)
        # A tensor in place of a list is one that is stacked already.
        inner.collected_tensors[pattern] = _stacked(each, len(weights)) if merged else [*each]
    found: dict[str, torch.Tensor] = inner.convert(plan.target, model=model, config=model.config)
    return found


def _stacked(each: Iterable[torch.Tensor], count: int) -> torch.Tensor:
    found = None
    for number, one in enumerate(each):
        if found is None:
            found = torch.empty((count, *one.shape), dtype=one.dtype, device=one.device)
        found[number] = one
    assert found is not None
    return found


def _numbers(weight: str, stored: _Stored) -> torch.Tensor:
    """The numbers of one stored weight, of the type that is noted beside it."""
    state = stored.state(weight)
    code = stored.read(f"{weight}.quant_map", torch.float32)
    if state.nested_block is None:
        absmax_B = stored.read(f"{weight}.absmax", torch.float32)
    else:
        absmax_B = nested_absmax(
            stored.read(f"{weight}.absmax", torch.uint8),
            stored.read(f"{weight}.nested_absmax", torch.float32),
            stored.read(f"{weight}.nested_quant_map", torch.float32),
            torch.tensor(state.offset, device=stored.device),
            block=state.nested_block,
        )
    return four_bit_numbers(
        stored.read(weight, torch.uint8), absmax_B, code,
        kind=state.kind, block=state.block, shape=state.shape, dtype=state.dtype,
    )  # fmt: skip


def frozen(values: torch.Tensor) -> nn.Parameter:
    """A parameter that no optimiser may change."""
    return nn.Parameter(values, requires_grad=False)
