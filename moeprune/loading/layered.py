"""transformers' reader of compressed-tensors, for files whose layers are not all of one scheme.

Its own takes one number of bits for all experts, and drops plain experts beside packed ones. Such
files are read weight by weight, as each is stored, and become plain numbers; every other file it
leaves to transformers' own.
"""

import re
from collections.abc import Iterable
from typing import Any

from safetensors import safe_open
from transformers.quantizers import auto
from transformers.quantizers.quantizer_compressed_tensors import CompressedTensorsHfQuantizer

from moeprune.loading.decoding import DecodingCompressed

_COMPRESSED = "compressed-tensors"
# The target of a group that is of no module: with it, a file says that its layers differ.
_NO_LAYER = "experts[.]of[.]no[.]layer"
_EXPERT = re.compile(r"\.experts\.\d+\.(?:.+\.)?(weight|weight_packed)$")


class LayeredQuantizer(DecodingCompressed):
    """Reads layers of several schemes, and leaves the rest to transformers' own."""

    def __init__(self, quantization_config: Any, **kwargs: Any) -> None:
        super().__init__(quantization_config, **kwargs)
        self._layered = self.pre_quantized and _says_so(quantization_config)

    def _process_model_before_weight_loading(
        self, model: Any, checkpoint_files: Iterable[str] | None = None, **kwargs: Any
    ) -> None:
        files = [*(checkpoint_files or ())]
        if self.pre_quantized and not self._layered:
            self._layered = _has_plain_experts_too(files)
        if self._layered:
            self.quantization_config.dequantize = True
            super()._process_model_before_weight_loading(model, checkpoint_files=files, **kwargs)
        else:
            kwargs["checkpoint_files"] = checkpoint_files
            CompressedTensorsHfQuantizer._process_model_before_weight_loading(self, model, **kwargs)

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        """Weight by weight, or as transformers does."""
        if self._layered:
            return super().update_weight_conversions(weight_conversions, model)
        found: list[Any] = CompressedTensorsHfQuantizer.update_weight_conversions(
            self, weight_conversions, model
        )
        return found


def register_layered() -> None:
    """Put the reader in the place of transformers' own; nothing where somebody has been before."""
    if auto.AUTO_QUANTIZER_MAPPING[_COMPRESSED] is CompressedTensorsHfQuantizer:
        auto.AUTO_QUANTIZER_MAPPING[_COMPRESSED] = LayeredQuantizer


def _says_so(config: Any) -> bool:
    inner = getattr(config, "quantization_config", None)
    groups = getattr(inner, "config_groups", None) or {}
    return any(_NO_LAYER in target for group in groups.values() for target in group.targets)


def _has_plain_experts_too(files: Iterable[str]) -> bool:
    kinds = set()
    for path in files:
        if str(path).endswith(".safetensors"):
            with safe_open(path, framework="pt") as file:
                found = map(_EXPERT.search, file.keys())
                kinds |= {match[1] for match in found if match is not None}
    return len(kinds) > 1
