"""Every family with a scheme for every layer: read as it was written, or it fails aloud."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from family_data import FamilyData, family_data, family_files, write_checkpoint
from plans import plan_keeping
from quantised_reference import write_replaced
from test_quantised_families import WIDER, load

import moeprune
from moeprune.core.quantisation import LayerSchemes
from moeprune.errors import UnsupportedModelError
from moeprune.stages.identify import OpenModel, open_model
from moeprune.stages.weighed import weigh

FAST = ("gpt_oss",)
MIXES = (("int8", "int4", "none"), ("none", "int4", "none"))
NO_PLAIN = ("llama4", "llama4_text")


def params() -> list[object]:
    every = [pytest.param(name, marks=pytest.mark.families, id=name) for name in family_files()]
    return [pytest.param(name, id=f"{name}-fast") for name in FAST] + every


def keep_all(opened: OpenModel) -> list[range]:
    return [range(count) for count in opened.facts.num_experts]


def layered(schemes: tuple[str, ...], sizes: dict[str, int]) -> LayerSchemes:
    used = {scheme: size for scheme, size in sizes.items() if scheme in schemes}
    return LayerSchemes(schemes=schemes, group_sizes=used)


@pytest.mark.parametrize("mix", MIXES, ids="-".join)
@pytest.mark.parametrize("name", params())
@torch.no_grad()
def test_layers_of_different_schemes(name: str, mix: tuple[str, ...], tmp_path: Path) -> None:
    import transformers

    data = family_data(name)
    fields = {key: getattr(data, key) for key in data.__dataclass_fields__}
    data = FamilyData(**{**fields, "config": {**data.config, **WIDER.get(name, {})}})
    source = write_checkpoint(data, tmp_path / "source")
    opened = open_model(source)
    rows = len(opened.facts.layer_ids)
    schemes = (mix * rows)[:rows]
    weighed = weigh(opened, on_progress=lambda _: None)
    sizes = weighed.group_sizes
    assert ("none" not in weighed.schemes) == (name in NO_PLAIN)
    if name in NO_PLAIN:
        plan = plan_keeping(source, keep_all(opened), quantize=layered(schemes, sizes))
        with pytest.raises(UnsupportedModelError, match="no layer may stay as it is"):
            moeprune.export(source, plan=plan, output=tmp_path / "refused")
        schemes = (("int8", "int4") * rows)[:rows]
    elif {*schemes} == {"none"}:  # a model of one layer
        schemes = ("int4",)
    plan = plan_keeping(source, keep_all(opened), quantize=layered(schemes, sizes))
    out = moeprune.export(source, plan=plan, output=tmp_path / "out")
    reference = write_replaced(name, source, out, tmp_path / "reference")
    model = load(data, out)
    plain = getattr(transformers, type(model).__name__).from_pretrained(
        reference, dtype=torch.float32
    )
    have, want = model.state_dict(), plain.eval().state_dict()
    if have.keys() != want.keys():
        ids = torch.arange(5, 40)[None]
        logits = [one(input_ids=ids, use_cache=False).logits for one in (model, plain)]
        torch.testing.assert_close(*logits, rtol=1e-5, atol=1e-5)
        return
    for key, tensor in want.items():
        torch.testing.assert_close(have[key], tensor, rtol=1e-5, atol=1e-6, msg=key)
