"""What settings of quantised exports say: the keys that loaders read, and whom they skip."""

from __future__ import annotations

import re

import pytest
import torch
from compressed_tensors.utils.match import is_match
from transformers.quantizers.quantizers_utils import should_convert_module

from moeprune import plugins
from moeprune.core.quantisation import SCHEMES, SchemeOptions
from moeprune.quant import Written, schemes

EXPERTS = ("gate_proj", "up_proj", "down_proj")
QUANTISED = tuple(
    f"model.layers.{layer}.mlp.experts.{expert}.{name}"
    for layer in range(1, 12)
    for expert in range(3)
    for name in EXPERTS
)
PLAIN = (
    "model.embed_tokens",
    *(f"model.layers.0.mlp.{name}" for name in EXPERTS),
    *(f"model.layers.{layer}.self_attn.{n}_proj" for layer in range(12) for n in "qkvo"),
    *(f"model.layers.{layer}.mlp.gate" for layer in range(1, 12)),
    *(f"model.layers.{layer}.mlp.shared_expert_gate" for layer in range(1, 12)),
    *(f"model.layers.{layer}.mlp.shared_expert.{n}" for layer in range(1, 12) for n in EXPERTS),
    "model.layers.12.eh_proj",
)
SHARED = tuple(name for name in PLAIN if ".shared_expert." in name)


def written(also=(), **options):
    chosen = SchemeOptions(**{"group_size": 64, **options})
    plain = tuple(name for name in PLAIN if name not in also)
    return Written(quantised=(*QUANTISED, *also), plain=plain, options=chosen)


def settings(scheme, **options):
    return plugins.load(schemes, scheme).settings(written(**options))


def test_every_scheme_has_a_file():
    assert sorted(SCHEMES) == list(plugins.names(schemes))


@pytest.mark.parametrize(("scheme", "bits"), [("int8", 8), ("int4", 4)])
def test_settings_of_integers(scheme, bits):
    stated = settings(scheme)
    del stated["ignore"]
    assert stated == {
        "quant_method": "compressed-tensors",
        "format": "pack-quantized",
        "quantization_status": "compressed",
        "global_compression_ratio": None,
        "kv_cache_scheme": None,
        "config_groups": {
            "group_0": {
                "targets": ["Linear"],
                "format": "pack-quantized",
                "input_activations": None,
                "output_activations": None,
                "weights": {
                    "num_bits": bits,
                    "type": "int",
                    "symmetric": True,
                    "strategy": "group",
                    "group_size": 64,
                    "dynamic": False,
                    "actorder": None,
                    "block_structure": None,
                    "observer": "minmax",
                    "observer_kwargs": {},
                },
            }
        },
    }


def test_settings_of_nf4():
    stated = settings("nf4", double_quant=True, dtype="F16")
    del stated["llm_int8_skip_modules"]
    assert stated == {
        "quant_method": "bitsandbytes",
        "load_in_4bit": True,
        "load_in_8bit": False,
        "_load_in_4bit": True,
        "_load_in_8bit": False,
        "bnb_4bit_quant_type": "nf4",
        "bnb_4bit_compute_dtype": "float16",
        "bnb_4bit_use_double_quant": True,
        "bnb_4bit_quant_storage": "uint8",
        "llm_int8_threshold": 6.0,
    }


def test_settings_of_fp8():
    stated = settings("fp8")
    assert stated.pop("modules_to_not_convert") == sorted((*PLAIN, "lm_head"))
    assert stated == {
        "quant_method": "fp8",
        "activation_scheme": "dynamic",
        "weight_block_size": [64, 64],
    }


def compressed(keys, name):
    return is_match(name, torch.nn.Linear(1, 1), keys)


def transformers_5(keys, name):
    return not should_convert_module(name, keys)


def transformers_4(keys, name):
    return name.rpartition(".")[2] in keys or any(f"{key}." in name or key == name for key in keys)


def vllm(keys, name):
    parts = name.split(".")
    return bool(set(parts) & set(keys)) or any(
        ".".join(parts[: end + 1]) in keys for end in range(len(parts))
    )


def vllm_whole(keys, name):
    return name in keys


READERS = [
    ("int8", "ignore", compressed),
    ("fp8", "modules_to_not_convert", transformers_5),
    ("fp8", "modules_to_not_convert", vllm_whole),
    ("nf4", "llm_int8_skip_modules", transformers_5),
    ("nf4", "llm_int8_skip_modules", transformers_4),
    ("nf4", "llm_int8_skip_modules", vllm),
]


@pytest.mark.parametrize(("scheme", "key", "skips"), READERS)
@pytest.mark.parametrize("also", [(), SHARED])
def test_every_reader_skips_the_plain_modules_and_no_other(scheme, key, skips, also):
    told = written(also=also)
    keys = plugins.load(schemes, scheme).settings(told)[key]
    assert [name for name in (*told.plain, "lm_head") if not skips(keys, name)] == []
    assert [name for name in told.quantised if skips(keys, name)] == []


def test_vllm_skips_what_it_fuses():
    keys = settings("nf4")["llm_int8_skip_modules"]
    assert vllm(keys, "model.layers.3.self_attn.qkv_proj")
    assert vllm(keys, "model.layers.3.mlp.shared_expert.gate_up_proj")
    assert vllm(keys, "model.layers.0.mlp.gate_up_proj")
    assert not vllm(keys, "model.layers.3.mlp.experts")


def test_ignored_layers_are_patterns_and_few():
    *ignored, rest = settings("int8")["ignore"]
    assert ignored == sorted(ignored)
    assert len(ignored) == 15
    # transformers calls modules of some families otherwise than their files do.
    other, experts = "model.layers.7.mlp.shared_experts.up_proj", "model.layers.7.mlp.experts"
    assert re.match(rest[3:], other) and re.match(rest[3:], "model.layers.7.self_attn.o_proj")
    assert not any(re.match(rest[3:], name) for name in (experts, f"{experts}.3.down_proj"))
    assert any(re.match(name[3:], "language_model.layers.7.mlp.gate") for name in ignored)


def test_a_module_that_differs_in_its_number_alone_is_named():
    told = Written(
        quantised=("model.layers.0.experts.0.w1",),
        plain=("model.layers.1.experts.0.w1", "model.layers.1.mixer.w1"),
        options=SchemeOptions(group_size=64),
    )
    for scheme, key, skips in READERS:
        keys = plugins.load(schemes, scheme).settings(told)[key]
        assert all(skips(keys, name) for name in told.plain), (scheme, keys)
        assert not any(skips(keys, name) for name in told.quantised), (scheme, keys)
