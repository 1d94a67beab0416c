"""Quantised exports in other loaders: the logits of the numbers that are stored.

    bash tests/external/install.sh
    python -m pytest -m external tests/external/test_quantised.py

The stored numbers are decoded by compressed-tensors and bitsandbytes themselves, and transformers
computes with them. Every export is pruned as well.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from decoded import decoded_checkpoint
from published import published_checkpoint, transformers_logits
from test_loaders import TOKENS, Case, largest, planned, start

import moeprune
from moeprune.core.quantisation import LayerSchemes

pytestmark = pytest.mark.external

TOLERANCE = 3e-5  # of the largest logit: these models are twice as wide as those of test_loaders
RECURRENT = 1e-4  # linear attention adds up over the text, and rounding with it
CASES = {
    "qwen3_moe": Case("qwen3_moe", overrides={"moe_intermediate_size": 128}),  # default groups
    "qwen3_moe, narrow": Case("qwen3_moe", keep=6),
    "olmoe": Case("olmoe", keep=5),
    "mixtral": Case("mixtral"),
    "glm4_moe": Case("glm4_moe"),
    "qwen3_5_moe": Case("qwen3_5_moe", both_spellings=True),
}
PLAIN_EXPERTS = {"plain_experts": True}
MIXED = LayerSchemes(
    schemes=("int4", "none", "int8", "int4"), group_sizes={"int4": 32, "int8": 128}
)


@dataclass(frozen=True)
class Made:
    name: str
    folder: Path
    wanted: torch.Tensor  # logits of transformers on what the folder's numbers mean
    pruned: torch.Tensor  # of the same experts as the source has them
    experts: int  # of all layers
    tolerance: float  # of the largest logit


@pytest.fixture(scope="session")
def made(tmp_path_factory: pytest.TempPathFactory) -> Callable[..., Made]:
    known: dict[str, Made] = {}

    def get(name: str, scheme: str, **options: Any) -> Made:
        key = f"{name}, {scheme} {options or ''}"
        if key not in known:
            folder = tmp_path_factory.mktemp("quantised")
            source, plan = planned(CASES[name], folder)
            pruned = moeprune.export(source, plan=plan, output=folder / "pruned")
            asked = moeprune.QuantOptions(scheme=scheme, **options)
            if scheme == "mixed":
                plan = replace(plan, quantize=MIXED)
            out = moeprune.export(source, plan=plan, output=folder / "out", quantize=asked)
            known[key] = Made(
                name=key,
                folder=out,
                wanted=transformers_logits(decoded_checkpoint(out, folder / "decoded"), TOKENS),
                pruned=transformers_logits(pruned, TOKENS),
                experts=sum(map(len, plan.keep)),
                tolerance=RECURRENT if name == "qwen3_5_moe" else TOLERANCE,
            )
        return known[key]

    return get


def check(
    loader: str,
    case: Made,
    result: Path,
    record: Callable[[str, object], None],
    options: dict[str, Any] | None = None,
) -> Any:
    """What the loader stated, after its logits were compared."""
    ended = start(loader, case.folder, result, options)
    assert ended.returncode == 0, ended.stdout[-2000:] + ended.stderr[-4000:]
    seen = np.load(result)
    kind = "logits" if "logits" in seen else "logprobs"
    found, wanted, pruned = torch.tensor(seen[kind]), case.wanted, case.pruned
    if kind == "logprobs":
        wanted, pruned = (x[:-1].double().log_softmax(-1) for x in (wanted, pruned))
    difference, size = largest(found, wanted), wanted.abs().max().item()
    record(
        "figure",
        f"{loader} {seen['version']}, {case.name}: largest difference of {kind} {difference:.1e} "
        f"of {size:.1f} (from the pruned model before quantisation {largest(found, pruned):.2f})",
    )
    assert difference <= case.tolerance * size
    assert largest(found, pruned) > 0.01  # what was lost shows, so agreement is no accident
    return seen


@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("name", CASES)
def test_llama_cpp_converts_and_runs_it(
    name: str, scheme: str, made: Callable[..., Made], tmp_path: Path, record_property: Any
) -> None:
    check("llamacpp", made(name, scheme), tmp_path / "seen.npz", record_property)


@pytest.mark.parametrize("options", [{}, {"double_quant": True}], ids=["nf4", "nested"])
@pytest.mark.parametrize("name", [name for name in CASES if name != "qwen3_5_moe"])
def test_transformers_4_reads_nf4_by_itself(
    name: str,
    options: dict[str, Any],
    made: Callable[..., Made],
    tmp_path: Path,
    record_property: Any,
) -> None:
    """It has no Qwen3.5; what it reads stays packed, every expert and nothing else."""
    case = made(name, "nf4", **options)
    seen = check("transformers4", case, tmp_path / "seen.npz", record_property)
    assert len(seen["packed"]) == 3 * case.experts
    assert all(".experts." in name for name in seen["packed"])


@pytest.mark.parametrize(
    ("loader", "scheme"),
    [("llamacpp", "int8"), ("llamacpp", "fp8"), ("transformers4", "nf4")],
    ids=["llama.cpp int8", "llama.cpp fp8", "transformers 4 nf4"],
)
@pytest.mark.parametrize("name", ["qwen3_moe", "glm4_moe"])
def test_attention_and_shared_experts_too(
    name: str,
    loader: str,
    scheme: str,
    made: Callable[..., Made],
    tmp_path: Path,
    record_property: Any,
) -> None:
    """GLM-4-MoE has shared experts, and a dense layer that stays as it is."""
    also = ("attention", "shared") if name == "glm4_moe" else ("attention",)
    case = made(name, scheme, also=also)
    seen = check(loader, case, tmp_path / "seen.npz", record_property)
    if loader == "transformers4":
        kinds = {re.sub(r"\d+", "N", module) for module in seen["packed"]}
        attention = {f"model.layers.N.self_attn.{name}_proj" for name in "qkvo"}
        experts = {f"model.layers.N.mlp.experts.N.{name}_proj" for name in ("gate", "up", "down")}
        shared = {module.replace("experts.N", "shared_experts") for module in experts}
        assert kinds == attention | experts | (shared if name == "glm4_moe" else set())


@pytest.mark.parametrize("scheme", ["int8", "int4", "fp8"])
@pytest.mark.parametrize("name", ["qwen3_moe", "qwen3_moe, narrow", "olmoe", "mixtral", "glm4_moe"])
def test_vllm_reads_every_tensor_of_it(
    name: str, scheme: str, made: Callable[..., Made], tmp_path: Path, record_property: Any
) -> None:
    """As far as a CPU without the kernels shows: they alone are put in place of vLLM's."""
    case = made(name, scheme)
    check("vllm", case, tmp_path / "seen.npz", record_property, PLAIN_EXPERTS)


def test_vllm_reads_a_scheme_a_layer(
    made: Callable[..., Made], tmp_path: Path, record_property: Any
) -> None:
    case = made("qwen3_moe", "mixed")
    check("vllm", case, tmp_path / "seen.npz", record_property, PLAIN_EXPERTS)


REFUSES = {  # loader -> what it says of a scheme, where it does not read it
    ("llamacpp", "nf4"): "Quant method is not yet supported: 'bitsandbytes'",
    ("llamacpp", "mixed"): "Can't handle multiple config groups",
    ("vllm", "nf4"): "Unknown quantization method: bitsandbytes",
    ("mlx", "nf4"): r"quant_state\.bitsandbytes__nf4",
    ("mlx", "int8"): r"\.weight_shape",
    ("mlx", "int4"): r"\.weight_shape",
    ("mlx", "fp8"): r"\.weight_scale_inv",
}


@pytest.mark.parametrize(("loader", "scheme"), REFUSES, ids=[" ".join(pair) for pair in REFUSES])
def test_a_loader_that_does_not_read_it_says_so(
    loader: str, scheme: str, made: Callable[..., Made], tmp_path: Path
) -> None:
    case = made("qwen3_moe", scheme)
    options = {"dtype": "bfloat16"} if loader == "vllm" else None  # its FP8 takes no float32
    ended = start(loader, case.folder, tmp_path / "seen.npz", options)
    assert ended.returncode != 0 and not (tmp_path / "seen.npz").exists()
    assert re.search(REFUSES[loader, scheme], ended.stderr), ended.stderr[-2000:]


@pytest.mark.parametrize(
    ("loader", "scheme", "says"),
    [
        ("llamacpp", "int8", "Model MoePruneForCausalLM is not supported"),
        ("vllm", "int8", r"architectures \['MoePruneForCausalLM'\] are not supported"),
        ("vllm", "fp8", r"architectures \['MoePruneForCausalLM'\] are not supported"),
        ("transformers4", "nf4", "GptOssExperts has no attribute"),
    ],
)
def test_single_experts_that_only_the_code_in_the_folder_reads(
    loader: str, scheme: str, says: str, tmp_path: Path
) -> None:
    """GPT-OSS: vLLM would pass over their names and compute with whatever memory holds."""
    source = published_checkpoint("gpt_oss", tmp_path / "source", both_spellings=True)
    out = moeprune.export(source, output=tmp_path / "out", quantize=scheme)
    options = PLAIN_EXPERTS if loader == "vllm" else None
    ended = start(loader, out, tmp_path / "seen.npz", options)
    assert ended.returncode != 0 and not (tmp_path / "seen.npz").exists()
    assert re.search(says, ended.stdout + ended.stderr), ended.stderr[-2000:]
