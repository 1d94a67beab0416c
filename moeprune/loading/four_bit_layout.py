"""How the 4-bit weights of all experts lie together, and what is noted beside each.

E experts.
"""

import functools
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any

import torch

from moeprune.loading.four_bit import float_type

Arrange = Callable[[list[list[torch.Tensor]]], torch.Tensor]


@dataclass(frozen=True)
class QuantState:
    """What bitsandbytes notes beside one weight.

    Attributes:
        kind: ``"nf4"`` or ``"fp4"``.
        block: consecutive numbers that share a magnitude.
        dtype: the weight's own type.
        shape: the weight's.
        nested_block: magnitudes that share one of their own; None: they are float32.
        offset: of nested magnitudes.
    """

    kind: str
    block: int
    dtype: torch.dtype
    shape: tuple[int, ...]
    nested_block: int | None = None
    offset: float = 0.0

    @classmethod
    def read(cls, text: bytes, kind: str) -> "QuantState":
        """From the stored JSON."""
        state = json.loads(text)
        return cls(
            kind=kind,
            block=int(state["blocksize"]),
            dtype=float_type(state["dtype"]),
            shape=tuple(state["shape"]),
            nested_block=state.get("nested_blocksize"),
            offset=float(state.get("nested_offset", 0.0)),
        )

    def text(self, offset: float) -> bytes:
        """The JSON of a weight that differs in its offset alone."""
        dtype = str(self.dtype).removeprefix("torch.")
        state: dict[str, Any] = {
            "quant_type": self.kind, "blocksize": self.block, "dtype": dtype, "shape": self.shape,
        }  # fmt: skip
        if self.nested_block is not None:
            state |= {
                "nested_blocksize": self.nested_block,
                "nested_dtype": "float32",
                "nested_offset": offset,
            }
        return json.dumps(state).encode()

    @functools.cached_property
    def numbers(self) -> int:
        """How many numbers the weight has."""
        count = 1
        for length in self.shape:
            count *= length
        return count

    @functools.cached_property
    def sizes(self) -> tuple[int, int, int]:
        """Packed bytes, magnitudes, magnitudes of magnitudes."""
        blocks = -(-self.numbers // self.block)
        return -(-self.numbers // 2), blocks, -(-blocks // (self.nested_block or blocks or 1))


@dataclass(frozen=True)
class FourBitLayout:
    """How the weights of all experts lie where a family has one parameter.

    Attributes:
        states: of the stored weights of one expert that make up its part of the parameter.
        shape: (E, …) of the parameter.
        dtype: of the parameter.
        arrange: from E lists of each weight's matrices to the parameter; None: the matrices follow
            each other along their first axis.
    """

    states: tuple[QuantState, ...]
    shape: tuple[int, ...]
    dtype: torch.dtype
    arrange: Arrange | None = None

    @functools.cached_property
    def together(self) -> QuantState | None:
        """The state of all of them as one matrix, where blocks end with each of them."""
        first = self.states[0]
        alike = all(
            replace(state, shape=first.shape, offset=0.0) == replace(first, offset=0.0)
            and state.shape[1:] == first.shape[1:]
            and state.numbers % (2 * state.block) == 0
            for state in self.states
        )
        if not alike or self.arrange is not None:
            return None
        return replace(first, shape=(sum(s.shape[0] for s in self.states), *first.shape[1:]))

    def tensors(self) -> dict[str, tuple[tuple[int, ...], torch.dtype]]:
        """What follows the parameter's name -> shape and type, of every tensor in its place."""
        experts, first = self.shape[0], self.states[0]
        packed, blocks, outer = (sum(s.sizes[part] for s in self.states) for part in range(3))
        found = {
            "_packed": ((experts, packed), torch.uint8),
            "_absmax": ((experts, blocks), torch.float32),
            "_quant_map": ((16,), torch.float32),
        }
        if first.nested_block is not None:
            found["_absmax"] = ((experts, blocks), torch.uint8)
            found["_nested_absmax"] = ((experts, outer), torch.float32)
            found["_nested_quant_map"] = ((256,), torch.float32)
            found["_nested_offset"] = ((experts, len(self.states)), torch.float32)
        return found
