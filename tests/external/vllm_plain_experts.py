"""vLLM reads quantised experts by itself; what it read is multiplied as plain float32 numbers.

vLLM has no kernels for such experts on most CPUs and ends where it chooses one. Everything before
and after that choice is vLLM's own: which modules are quantised, the shapes of their parameters,
and where every tensor of the checkpoint goes.
"""

import torch
from vllm.model_executor.layers.fused_moe.oracle.fp8 import Fp8MoeBackend
from vllm.model_executor.layers.fused_moe.oracle.int_wna16 import WNA16MoEBackend
from vllm.model_executor.layers.fused_moe.unquantized_fused_moe_method import (
    UnquantizedFusedMoEMethod,
)
from vllm.model_executor.layers.quantization import fp8
from vllm.model_executor.layers.quantization.compressed_tensors.compressed_tensors_moe import (
    compressed_tensors_moe_wna16 as wna16,
)


def unpacked(method, packed: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """(E, out, in) of int32 (E, out, in * bits / 32) and a scale a group."""
    bits = method.num_bits
    shifts = torch.arange(0, 32, bits)
    numbers = (packed.unsqueeze(-1) >> shifts & (1 << bits) - 1).flatten(-2) - (1 << bits - 1)
    return numbers * scale.repeat_interleave(method.group_size, -1)


def scaled(method, weight: torch.Tensor, scale: torch.Tensor) -> torch.Tensor:
    """(E, out, in) of FP8 numbers and a scale a block."""
    rows, columns = method.weight_block_size
    wide = scale.repeat_interleave(rows, -2).repeat_interleave(columns, -1)
    return weight.float() * wide[..., : weight.shape[-2], : weight.shape[-1]]


def as_plain(method_class: type, decode, numbers: str, scales: str) -> None:
    """Let ``method_class`` turn what it loaded into numbers, and multiply them as they are."""

    def process_weights_after_loading(self, layer) -> None:
        for name in ("w13", "w2"):
            parts = (getattr(layer, f"{name}_{part}") for part in (numbers, scales))
            weight = torch.nn.Parameter(decode(self, *parts), requires_grad=False)
            if hasattr(layer, f"{name}_weight"):
                delattr(layer, f"{name}_weight")
            layer.register_parameter(f"{name}_weight", weight)
        self.plain = UnquantizedFusedMoEMethod(self.moe)
        self.plain.process_weights_after_loading(layer)
        self.moe_kernel = self.plain.moe_kernel

    def apply(self, layer, *args, **kwargs) -> torch.Tensor:
        return self.plain.apply(layer, *args, **kwargs)

    method_class.process_weights_after_loading = process_weights_after_loading
    method_class.apply = apply


def install() -> None:
    wna16.select_wna16_moe_backend = lambda **_: (WNA16MoEBackend.CPU, None)
    fp8.select_fp8_moe_backend = lambda **_: (Fp8MoeBackend.CPU, None)
    fp8.Fp8Config.get_supported_act_dtypes = classmethod(lambda cls: [torch.float32])
    as_plain(wna16.CompressedTensorsWNA16MoEMethod, unpacked, "weight_packed", "weight_scale")
    as_plain(fp8.Fp8MoEMethod, scaled, "weight", "weight_scale_inv")
