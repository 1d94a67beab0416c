"""transformers' reader of bitsandbytes' 4-bit checkpoints, for experts that are stored one by one.

transformers 5 merges the weights of single experts into one parameter, and its own reader of
4-bit checkpoints knows linear layers alone. Registered in its place, this one keeps experts packed
and leaves everything else to transformers' own, and so every checkpoint without such experts.

With ``"dequantize": true`` in config.json's ``quantization_config`` all weights become plain.
"""

import logging
import re
from typing import Any

import torch
from torch import nn
from transformers.quantizers import auto
from transformers.quantizers.quantizer_bnb_4bit import Bnb4BitHfQuantizer
from transformers.utils import is_bitsandbytes_available, quantization_config

from moeprune.loading.expert_plans import (
    ExpertPlan,
    expert_plans,
    four_bit_kinds,
    packed_layout,
    state_name,
)
from moeprune.loading.expert_weights import FourBitConverter
from moeprune.loading.four_bit_layout import QuantState
from moeprune.loading.packed_experts import pack_experts, unpack_experts
from moeprune.loading.stored_bytes import ByteReader, StoredBytes, stored_bytes

_log = logging.getLogger(__name__)
_METHOD = "bitsandbytes_4bit"
_BESIDE = (".absmax", ".quant_map", ".nested_absmax", ".nested_quant_map")


class BitsAndBytesConfig(quantization_config.BitsAndBytesConfig):
    """transformers' own, and whether weights become plain numbers while they are loaded.

    Its name is transformers': that is how it tells whether two configs are of a kind.
    """

    def __init__(self, *args: Any, dequantize: bool = False, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self.dequantize = bool(dequantize)

    def to_dict(self) -> dict[str, Any]:
        """What a saved config.json says: its weights are packed."""
        stated: dict[str, Any] = super().to_dict()
        stated.pop("dequantize", None)
        return stated


class FourBitQuantizer(Bnb4BitHfQuantizer):
    """Loads experts that are stored one by one in four bits, and leaves the rest to its parent."""

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._places: dict[str, StoredBytes] = {}
        self._device_map: Any = None

    @property
    def _is_plain(self) -> bool:
        return bool(getattr(self.quantization_config, "dequantize", False))

    def validate_environment(self, *args: Any, **kwargs: Any) -> None:
        """Whether bitsandbytes is needed is seen later: experts alone do not."""
        if not self.pre_quantized or is_bitsandbytes_available():
            super().validate_environment(*args, **kwargs)

    def _process_model_before_weight_loading(
        self, model: Any, device_map: Any = None, checkpoint_files: Any = None, **kwargs: Any
    ) -> None:
        places = stored_bytes(checkpoint_files) if self.pre_quantized else {}
        self._places, self._device_map = places, device_map
        if not four_bit_kinds(places):
            self._natively(model)

    def _natively(self, model: Any) -> None:
        """What transformers' own reader does before it loads."""
        self._places = {}
        if not is_bitsandbytes_available():
            super().validate_environment(device_map=self._device_map)
        super()._process_model_before_weight_loading(model, self._device_map)

    def update_weight_conversions(self, weight_conversions: list[Any], model: Any) -> list[Any]:
        """Reads the experts before transformers' own converters see their names."""
        kinds, places = four_bit_kinds(self._places), self._places
        plans = expert_plans(kinds, weight_conversions, model) if kinds else []
        linear = {plan.target for plan in plans if plan.converter is None}
        if not self._is_plain:
            plans = [plan for plan in plans if plan.target not in linear]
        if not plans:
            if kinds:
                self._natively(model)
            native: list[Any] = super().update_weight_conversions(weight_conversions, model)
            return native
        _check_not_spread(model)
        collected = {self._planned(plan, model, kinds): plan for plan in plans}
        names = {
            name: target
            for target, plan in collected.items()
            for weights in plan.weights
            for weight in weights
            for name in _names(weight, kinds, places)
        }
        mine = FourBitConverter(
            collected, names, kinds, places, weight_conversions, self,
            direct=_is_all_cpu(self._device_map),
        )  # fmt: skip
        self._places = {}
        if self._is_plain:
            return [mine, *weight_conversions]
        self._keep_linear(model, linear)
        general = self.get_weight_conversions() if linear else []
        return [mine, *weight_conversions, *general]

    def _planned(self, plan: ExpertPlan, model: Any, kinds: dict[str, str]) -> str:
        """Make room for a parameter; the name that transformers is to collect its tensors under."""
        if self._is_plain:
            return plan.target
        with ByteReader() as reader:

            def state(weight: str) -> QuantState:
                place = self._places[state_name(weight, kinds[weight])]
                text = torch.empty(place.count, dtype=torch.uint8)
                reader.into(place, text)
                return QuantState.read(bytes(text.tolist()), kinds[weight])

            plan.layout = packed_layout(plan, model, state)
        path, _, name = plan.target.rpartition(".")
        module = model.get_submodule(path)
        if plan.layout is None:
            parameter = model.get_parameter(plan.target)
            if len(plan.weights[0]) == len(parameter):  # otherwise transformers will tell
                _log.warning(
                    f"{plan.target}: a {type(module).__name__} cannot run on packed 4-bit weights; "
                    f"they become {parameter.dtype} and take the memory of it."
                )
            return plan.target
        pack_experts(module, {name: plan.layout})
        return f"{plan.target}_packed"

    def _keep_linear(self, model: Any, linear: set[str]) -> None:
        """Linear layers that are stored in four bits become bitsandbytes', and no others."""
        if not linear:
            return
        if not is_bitsandbytes_available():
            super().validate_environment(device_map=self._device_map)
        from transformers.integrations import replace_with_bnb_linear

        others = [
            f"{re.escape(name)}$"
            for name, module in model.named_modules()
            if isinstance(module, nn.Linear) and f"{name}.weight" not in linear
        ]
        self.modules_to_not_convert = others
        replace_with_bnb_linear(
            model,
            modules_to_not_convert=others,
            quantization_config=self.quantization_config,
            pre_quantized=True,
        )

    def param_needs_quantization(self, model: Any, param_name: str, **kwargs: Any) -> bool:
        """Of bitsandbytes' layers alone, which are there only if it is."""
        if not is_bitsandbytes_available():
            return False
        return bool(super().param_needs_quantization(model, param_name, **kwargs))

    def _process_model_after_weight_loading(self, model: Any, **kwargs: Any) -> Any:
        return model if self._is_plain else super()._process_model_after_weight_loading(model)

    def _dequantize(self, model: Any, dtype: Any = None) -> Any:
        for name, weight in model.named_parameters():
            state = getattr(weight, "quant_state", None)
            if getattr(state, "packing_format_for_cpu", False):
                # Its numbers would be read in the wrong order, without a word.
                raise ValueError(
                    f"{name}: bitsandbytes has laid out this weight for its kernels on CPUs, and "
                    "does not find back. Dequantise the model before it has run."
                )
        for module in list(model.modules()):
            if hasattr(module, "moeprune_four_bit"):
                unpack_experts(module)
        if any(type(module).__name__ == "Linear4bit" for module in model.modules()):
            model = super()._dequantize(model, dtype=dtype)
        return model


def register_nf4() -> None:
    """Put the reader in the place of transformers' own; nothing where somebody has been before."""
    if auto.AUTO_QUANTIZER_MAPPING[_METHOD] is Bnb4BitHfQuantizer:
        auto.AUTO_QUANTIZER_MAPPING[_METHOD] = FourBitQuantizer
        auto.AUTO_QUANTIZATION_CONFIG_MAPPING[_METHOD] = BitsAndBytesConfig


def _names(weight: str, kinds: dict[str, str], places: dict[str, StoredBytes]) -> list[str]:
    """A stored weight and all that stands beside it."""
    beside = [f"{weight}{suffix}" for suffix in _BESIDE if f"{weight}{suffix}" in places]
    return [weight, *beside, state_name(weight, kinds[weight])]


def _is_all_cpu(device_map: Any) -> bool:
    devices = device_map.values() if isinstance(device_map, dict) else [device_map]
    return {str(device) for device in devices} == {"cpu"}


def _check_not_spread(model: Any) -> None:
    spread = getattr(model.config, "distributed_config", None)
    for name in ("tp_size", "ep_size", "fsdp_size"):
        if (getattr(spread, name, None) or 1) > 1:
            raise ValueError(
                f"{name}: experts in four bits are not spread over processes. Load with "
                "device_map, or dequantise the checkpoint."
            )
