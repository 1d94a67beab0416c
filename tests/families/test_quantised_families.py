"""Every family quantised: what was written is what is in memory, or the export is refused.

Loaded as anyone would load it: plainly where transformers reads single experts of the family, else
with the folder's own code, without which transformers refuses.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from family_data import FamilyData, family_data, family_files, write_checkpoint
from quantised_reference import config_of, write_replaced

import moeprune
from moeprune.core.names import is_text_path
from moeprune.errors import UnsupportedModelError

SCHEMES = ("int8", "fp8", "nf4")
FAST = ("gpt_oss", "step3p7", "laguna")
# Widths that the scheme can write.
WIDER: dict[str, dict[str, Any]] = {
    "dbrx": {"ffn_config": {"ffn_hidden_size": 24, "moe_num_experts": 12, "moe_top_k": 3}}
}
# Models of which transformers decompresses linear modules on a forward pass, which needs the text.
TEXT = {"llama4": "AutoModelForCausalLM"}
REFUSED: dict[tuple[str, str], str] = {}


def params() -> list[Any]:
    every = [pytest.param(name, marks=pytest.mark.families, id=name) for name in family_files()]
    return [pytest.param(name, id=f"{name}-fast") for name in FAST] + every


def load(data: FamilyData, folder: Path) -> Any:
    """The model, every weight of which is in the file and has its place, with plain numbers."""
    import transformers

    stated = config_of(folder)
    name, options = TEXT.get(data.name, data.model_class), {}
    if "auto_map" in stated:
        options["trust_remote_code"] = True
        sees = "AutoModelForMultimodalLM" in stated["auto_map"] and data.name not in TEXT
        name = "AutoModelForMultimodalLM" if sees else "AutoModelForCausalLM"
    if stated["quantization_config"]["quant_method"] == "bitsandbytes":
        options["config"] = transformers.AutoConfig.from_pretrained(folder)
        options["config"].quantization_config["dequantize"] = True
    loader = getattr(transformers, name)
    model, report = loader.from_pretrained(
        folder, dtype=torch.float32, output_loading_info=True, **options
    )
    for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        found = [key for key in report[kind] if data.name not in TEXT or is_text_path(key)]
        assert not found, (kind, sorted(found)[:3])
    return model.eval()


@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", params())
@torch.no_grad()
def test_what_was_written_is_what_is_loaded(name: str, scheme: str, tmp_path: Path) -> None:
    import transformers

    data = family_data(name)
    data = FamilyData(
        **{
            **{key: getattr(data, key) for key in data.__dataclass_fields__},
            "config": {**data.config, **WIDER.get(name, {})},
        }
    )
    source = write_checkpoint(data, tmp_path / "source")
    if (name, scheme) in REFUSED:
        with pytest.raises(UnsupportedModelError, match=REFUSED[name, scheme]):
            moeprune.export(source, output=tmp_path / "out", quantize=scheme)
        return
    out = moeprune.export(source, output=tmp_path / "out", quantize=scheme)
    reference = write_replaced(name, source, out, tmp_path / "reference")
    model = load(data, out)
    plain = getattr(transformers, type(model).__name__).from_pretrained(
        reference, dtype=torch.float32
    )
    if "experts_implementation" in config_of(out):
        with pytest.raises(ValueError, match="trust_remote_code=True"):
            load_without_code(data, out)
        (architecture,) = config_of(out)["architectures"]  # by which other runtimes choose theirs
        assert architecture in {name.split(".")[1] for name in config_of(out)["auto_map"].values()}
    have, want = model.state_dict(), plain.eval().state_dict()
    if have.keys() != want.keys():
        ids = torch.arange(5, 40)[None]
        logits = [one(input_ids=ids, use_cache=False).logits for one in (model, plain)]
        torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)
        return
    for key, tensor in want.items():
        torch.testing.assert_close(have[key], tensor, rtol=1e-5, atol=1e-6, msg=key)


def load_without_code(data: FamilyData, folder: Path) -> None:
    import transformers

    getattr(transformers, data.model_class).from_pretrained(folder)
