"""Every family with attention and shared experts quantised too: it loads, or is refused."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from family_data import family_data, family_files, write_checkpoint
from quantised_reference import write_replaced
from test_quantised_families import WIDER, FamilyData, load

import moeprune
from moeprune.core.quantisation import QuantOptions
from moeprune.errors import UnsupportedModelError, UsageError

SCHEMES = ("int8", "fp8")
# Models that transformers loads without some of these weights, where nobody refuses.
LOST = {
    *((name, "int8") for name in ("axk2", "deepseek_ocr2", "deepseek_v4", "hy_v3", "kimi_k25")),
    *((name, "int8") for name in ("laguna", "mistral_large4", "qwen3_omni_moe_thinker")),
    *((name, scheme) for name in ("lara_mini", "sarvam_moe") for scheme in SCHEMES),
}


def export(source: Path, out: Path, scheme: str) -> Path:
    """With as many of the parts as the model has."""
    for also in (("attention", "shared"), ("attention",)):
        try:
            return moeprune.export(
                source, output=out, quantize=QuantOptions(scheme=scheme, also=also)
            )
        except UsageError as problem:
            assert "--also" in str(problem)
    raise AssertionError(f"{source}: no attention")


@pytest.mark.families
@pytest.mark.parametrize("scheme", SCHEMES)
@pytest.mark.parametrize("name", family_files())
@torch.no_grad()
def test_all_parts_are_what_was_written(name: str, scheme: str, tmp_path: Path) -> None:
    import transformers

    data = family_data(name)
    kept = {key: getattr(data, key) for key in data.__dataclass_fields__}
    data = FamilyData(**kept | {"config": data.config | WIDER.get(name, {})})
    source = write_checkpoint(data, tmp_path / "source")
    if (name, scheme) in LOST:
        with pytest.raises(UnsupportedModelError, match=r"--also attention.* Leave --also out"):
            export(source, tmp_path / "out", scheme)
        return
    out = export(source, tmp_path / "out", scheme)
    reference = write_replaced(name, source, out, tmp_path / "reference")
    model = load(data, out)
    plain = getattr(transformers, type(model).__name__).from_pretrained(
        reference, dtype=torch.float32
    )
    have, want = model.state_dict(), plain.eval().state_dict()
    if have.keys() == want.keys():
        for key, tensor in want.items():
            torch.testing.assert_close(have[key], tensor, rtol=1e-5, atol=1e-6, msg=key)
        return
    ids = torch.arange(5, 40)[None]
    logits = [one(input_ids=ids, use_cache=False).logits for one in (model, plain)]
    torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)
