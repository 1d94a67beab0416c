"""Experts whose weights stay in four bits: only those that a token chose become plain numbers.

The module is the family's own, of a class made from its class. Where the family has a parameter of
all experts, it holds their bytes, one row an expert; reading ``module.gate_up_proj[expert]`` gives
the numbers of that expert, for a moment. A forward pass takes the experts that its tokens chose one
after the other, so no two of them are plain at once.

T tokens, K experts a token, S = T · K choices, H hidden size, E experts, G bytes, B blocks.
"""

import functools
from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from moeprune.loading.four_bit import four_bit_numbers, nested_absmax
from moeprune.loading.four_bit_layout import FourBitLayout, QuantState

_LAYOUTS, _PLAIN_CLASS = "moeprune_four_bit", "moeprune_plain_class"


class FourBitParameter:
    """Stands for a parameter of all experts: an index gives the numbers of the experts it names."""

    def __init__(self, module: nn.Module, name: str, layout: FourBitLayout) -> None:
        self._module, self._name, self._layout = module, name, layout
        self.shape, self.dtype, self.ndim = (
            torch.Size(layout.shape),
            layout.dtype,
            len(layout.shape),
        )
        # What fills parameters that no file holds passes over those that say so.
        self._is_hf_initialized = True

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, which: Any) -> torch.Tensor:
        if isinstance(which, torch.Tensor) and which.ndim == 0:
            which = int(which)
        if isinstance(which, int):
            return self.expert(which)
        chosen = range(len(self))[which] if isinstance(which, slice) else which
        experts = [self.expert(int(one)) for one in chosen]
        return (
            torch.stack(experts)
            if experts
            else torch.empty((0, *self.shape[1:]), dtype=self.dtype, device=self.device)
        )

    @property
    def device(self) -> torch.device:
        """Where the bytes are."""
        return self.tensor("_packed").device

    def tensor(self, suffix: str) -> torch.Tensor:
        """One of the tensors that are in the parameter's place."""
        found: torch.Tensor = getattr(self._module, self._name + suffix)
        return found

    def expert(self, expert: int) -> torch.Tensor:
        """The numbers of one expert."""
        layout = self._layout
        together = layout.together
        absmax_B = self._absmax(expert)
        packed_G = self.tensor("_packed")[expert]
        if together is not None:
            return self._numbers(packed_G, absmax_B, together).to(layout.dtype)
        each, start, block = [], 0, 0
        for state in layout.states:
            packed, blocks, _ = state.sizes
            rows = packed_G[start : start + packed], absmax_B[block : block + blocks]
            each.append(self._numbers(*rows, state).to(layout.dtype))
            start, block = start + packed, block + blocks
        return (
            torch.cat(each)
            if layout.arrange is None
            else layout.arrange([[one] for one in each])[0]
        )

    def dense(self) -> torch.Tensor:
        """The whole parameter, plain."""
        found = torch.empty(self.shape, dtype=self.dtype, device=self.device)
        for expert in range(len(self)):
            found[expert] = self.expert(expert)
        return found

    def _numbers(self, packed_G: torch.Tensor, absmax_B: torch.Tensor, state: QuantState) -> Any:
        return four_bit_numbers(
            packed_G, absmax_B, self.tensor("_quant_map"),
            kind=state.kind, block=state.block, shape=state.shape, dtype=state.dtype,
        )  # fmt: skip

    def _absmax(self, expert: int) -> torch.Tensor:
        stored_B = self.tensor("_absmax")[expert]
        if self._layout.states[0].nested_block is None:
            return stored_B
        outer = self.tensor("_nested_absmax")[expert]
        offsets = self.tensor("_nested_offset")[expert]
        code = self.tensor("_nested_quant_map")
        found, block, start = [], 0, 0
        for number, state in enumerate(self._layout.states):
            _, blocks, outers = state.sizes
            assert state.nested_block is not None
            found.append(
                nested_absmax(
                    stored_B[block : block + blocks], outer[start : start + outers], code,
                    offsets[number], block=state.nested_block,
                )
            )  # fmt: skip
            block, start = block + blocks, start + outers
        return torch.cat(found) if len(found) > 1 else found[0]


def pack_experts(module: nn.Module, layouts: dict[str, FourBitLayout]) -> None:
    """Give a module of experts room for bytes where it had parameters, and a class that uses them.

    Args:
        module: the family's own, of a class that transformers' experts interface serves.
        layouts: parameter -> how its weights lie. The new tensors are on the meta device.
    """
    known = {**getattr(module, _LAYOUTS, {}), **layouts}
    plain_class: Any = getattr(module, _PLAIN_CLASS, type(module))
    for name, layout in layouts.items():
        del module._parameters[name]
        for suffix, (shape, dtype) in layout.tensors().items():
            empty = torch.empty(shape, dtype=dtype, device="meta")
            module.register_parameter(name + suffix, nn.Parameter(empty, requires_grad=False))
    module.__class__ = _packed_class(plain_class, tuple(sorted(known)))
    setattr(module, _LAYOUTS, known)
    setattr(module, _PLAIN_CLASS, plain_class)


def unpack_experts(module: nn.Module) -> None:
    """Turn a module of packed experts back into the family's own."""
    layouts: dict[str, FourBitLayout] = getattr(module, _LAYOUTS)
    plain = {name: getattr(module, name).dense() for name in layouts}
    module.__class__ = getattr(module, _PLAIN_CLASS)
    delattr(module, _LAYOUTS)
    delattr(module, _PLAIN_CLASS)
    for name, layout in layouts.items():
        for suffix in layout.tensors():
            del module._parameters[name + suffix]
        module.register_parameter(name, nn.Parameter(plain.pop(name), requires_grad=False))


def is_packable(module: nn.Module) -> bool:
    """Whether transformers' experts interface serves the module: then it is known how it runs."""
    return all(hasattr(module, name) for name in ("has_gate", "has_bias", "is_transposed"))


@functools.cache
def _packed_class(plain: type, names: tuple[str, ...]) -> type:
    """The family's own class of experts, with other parameters and another forward pass."""

    def parameter(name: str) -> property:
        return property(lambda self: FourBitParameter(self, name, self.moeprune_four_bit[name]))

    def forward(self: Any, hidden_TH: Any, ids_TK: Any, weights_TK: Any) -> torch.Tensor:
        other = _own_implementation(self.config._experts_implementation)
        run = packed_experts_forward if other is None else other
        result: torch.Tensor = run(self, hidden_TH, ids_TK, weights_TK)
        return result

    def extra_repr(self: Any) -> str:
        """What ``print(model)`` shows."""
        layouts = self.moeprune_four_bit.items()
        each = (f"{name}: {layout.states[0].kind} {[*layout.shape]}" for name, layout in layouts)
        return ", ".join(each)

    # Under the native name and module: what finds experts by their class finds these.
    shown = {"__module__": plain.__module__, "__qualname__": plain.__qualname__}
    methods = {"forward": forward, "extra_repr": extra_repr, **{n: parameter(n) for n in names}}
    return type(plain.__name__, (plain,), {**shown, **methods, "__doc__": plain.__doc__})


def _own_implementation(name: str | None) -> Callable[..., torch.Tensor] | None:
    """The experts function of this name that somebody registered; None: it is transformers' own.

    Those of transformers take the weights of all experts at once. Somebody's may ask for one expert
    after the other.
    """
    from transformers.integrations.moe import ALL_EXPERTS_FUNCTIONS

    if name is None or name not in ALL_EXPERTS_FUNCTIONS:
        return None
    function: Callable[..., torch.Tensor] = ALL_EXPERTS_FUNCTIONS[name]
    return None if function.__module__.startswith("transformers.") else function


def packed_experts_forward(
    module: Any, hidden_TH: torch.Tensor, ids_TK: torch.Tensor, weights_TK: torch.Tensor
) -> torch.Tensor:
    """The weighted sum over the chosen experts, (T, H); each runs once, on all its tokens."""
    top_k = ids_TK.shape[-1]
    sorted_S, order_S = ids_TK.reshape(-1).sort(stable=True)
    token_S = order_S // top_k
    wide = torch.promote_types(hidden_TH.dtype, torch.float32)
    weight_S = weights_TK.reshape(-1)[order_S].to(wide)
    experts, counts = torch.unique_consecutive(sorted_S, return_counts=True)
    total_TH = torch.zeros(hidden_TH.shape, dtype=wide, device=hidden_TH.device)
    first = "gate_up_proj" if module.has_gate else "up_proj"
    start = 0
    for expert, count in zip(experts.tolist(), counts.tolist(), strict=True):
        token_N, weight_N = (each[start : start + count] for each in (token_S, weight_S))
        start += count
        inner = _project(module, first, expert, hidden_TH[token_N])
        inner = module._apply_gate(inner) if module.has_gate else module.act_fn(inner)
        output_NH = _project(module, "down_proj", expert, inner)
        if getattr(module, "has_post_expert_norm", False):
            output_NH = module.post_expert_norm(output_NH)
        total_TH.index_add_(0, token_N, output_NH.to(wide) * weight_N[:, None])
    return total_TH.to(hidden_TH.dtype)


def _project(module: Any, name: str, expert: int, rows: torch.Tensor) -> torch.Tensor:
    weight = getattr(module, name)[expert]
    bias = getattr(module, f"{name}_bias")[expert] if module.has_bias else None
    weight = weight.T if module.is_transposed else weight
    return nn.functional.linear(rows.to(weight.dtype), weight, bias)
