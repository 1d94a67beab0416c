"""export --quantize: what plain transformers loads equals the numbers that were written."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from dequantised import plain_weights, stored, write_reference
from forked import run
from safetensors.torch import save_file
from tiny import tiny_checkpoint

import moeprune
from moeprune.cli.main import main
from moeprune.core.quantisation import QuantOptions
from moeprune.errors import UsageError

Tiny = Callable[[str], Path]
LOADING = Path(__file__).parent.parent / "quantised_loading.py"
SCHEMES = ("int8", "int4", "fp8")
PER_EXPERT = ("qwen3_moe", "olmoe", "mixtral", "glm4_moe")


def differences(pairs: Sequence[tuple[Path, Path]], *options: str) -> list[float]:
    """Of each (export, reference); a program is started once, which takes longest."""
    done = run([LOADING, *options, *(folder for pair in pairs for folder in pair)])
    assert done.returncode == 0, done.stderr[-2000:]
    found = [float(line) for line in done.stdout.splitlines()[-len(pairs) :]]
    assert len(found) == len(pairs)
    return found


def difference(export: Path, reference: Path, *options: str) -> float:
    """Of one pair."""
    return differences([(export, reference)], *options)[0]


@pytest.mark.parametrize("family", PER_EXPERT)
def test_plain_transformers_loads_the_numbers_that_were_written(
    family: str, tiny: Tiny, tmp_path: Path
) -> None:
    source, pairs = tiny(family), []
    experts = {name for name in stored(source) if ".experts." in name}
    for scheme in SCHEMES:
        out = moeprune.export(source, output=tmp_path / scheme, quantize=scheme)
        assert set(plain_weights(out)) == experts  # every expert, and nothing else
        pairs.append((out, write_reference(out, tmp_path / f"{scheme}-reference")))
    *found, other = differences([*pairs, (pairs[0][0], source)])
    assert all(one <= 1e-5 for one in found), found
    assert other > 1e-4  # the comparison can fail


@pytest.mark.parametrize("family", ["qwen3_moe", "glm4_moe", "deepseek_v3"])
def test_attention_and_shared_experts_too(family: str, tiny: Tiny, tmp_path: Path) -> None:
    also, pairs = ("attention", "shared")[: 1 + (family != "qwen3_moe")], []
    due = {
        name
        for name, tensor in stored(tiny(family)).items()
        if re.search(r"\.experts\.|\.shared_experts\.|self_attn\..*_proj", name)
        and tensor.dim() == 2
    }
    for scheme in ("int8", "fp8"):
        options = QuantOptions(scheme=scheme, also=also)
        out = moeprune.export(tiny(family), output=tmp_path / scheme, quantize=options)
        assert set(plain_weights(out)) == due
        pairs.append((out, write_reference(out, tmp_path / f"{scheme}-reference")))
    found = differences(pairs)
    assert all(one <= 1e-5 for one in found), found


@pytest.mark.parametrize("stored_as", [torch.bfloat16, torch.float32])
def test_in_the_type_that_the_model_states(stored_as: torch.dtype, tmp_path: Path) -> None:
    source, pairs = tiny_checkpoint("mixtral", tmp_path / "source", tie_word_embeddings=True), []
    tensors = {name: tensor.to(stored_as) for name, tensor in stored(source).items()}
    assert not any("lm_head" in name for name in tensors)  # the embeddings serve as it
    save_file(tensors, source / "model.safetensors", metadata={"format": "pt"})
    body = json.loads((source / "config.json").read_text("utf-8"))
    (source / "config.json").write_text(json.dumps(body | {"dtype": "bfloat16"}), "utf-8")
    for scheme in SCHEMES:
        out = moeprune.export(source, output=tmp_path / scheme, quantize=scheme)
        pairs.append((out, write_reference(out, tmp_path / f"{scheme}-reference")))
    found = differences(pairs, "--stored")
    assert all(one <= 1e-5 for one in found), found


@pytest.mark.parametrize("scheme", ["int9", "", 3, True, ["int8"], {"scheme": "int8"}])
def test_what_is_no_scheme(scheme: Any, tiny: Tiny, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is none of nf4, int8, int4, fp8"):
        moeprune.export(tiny("qwen3_moe"), output=tmp_path / "out", quantize=scheme)


def test_groups_that_cost_more_than_they_save(tiny: Tiny, tmp_path: Path, capsys: Any) -> None:
    command = ["export", str(tiny("qwen3_moe")), "-o", str(tmp_path / "out")]
    assert main([*command, "--quantize", "int8", "--group-size", "1"]) == 0
    assert re.search(r"size .* -> .* \(1\d\.\d% more\)", capsys.readouterr().out)
