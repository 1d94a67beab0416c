"""The synthetic checkpoints have the real layout: compressed-tensors' own readers agree."""

from __future__ import annotations

import pytest
import torch
from compressed_tensors.compressors import BaseCompressor
from compressed_tensors.quantization import QuantizationScheme
from quantisers import ALL

NAMES = [name for name in ALL if name.startswith("ct-") and name != "ct-pack-asymmetric"]


@pytest.mark.parametrize("name", NAMES)
def test_stored_numbers_mean_what_the_tests_say(name: str) -> None:
    form = ALL[name]
    group = form.settings["config_groups"]["group_0"]
    scheme = QuantizationScheme.model_validate(group)
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)) * 0.1
    stored, meaning = form.quantise(weight)
    reader = BaseCompressor.get_value_from_registry(group["format"])
    plain = reader.decompress(dict(stored), scheme)["weight"]
    # The readers may compute in bfloat16.
    torch.testing.assert_close(plain.float(), meaning, rtol=1e-2, atol=1e-4)
    # And the format is a useful one: the weight is still recognisable.
    assert torch.nn.functional.cosine_similarity(meaning.ravel(), weight.ravel(), dim=0) > 0.98


@pytest.mark.parametrize("name", sorted(set(ALL) - set(NAMES)))
def test_the_other_quantisers_keep_the_weight(name: str) -> None:
    weight = torch.randn(32, 64, generator=torch.Generator().manual_seed(1)) * 0.1
    _, meaning = ALL[name].quantise(weight)
    assert torch.nn.functional.cosine_similarity(meaning.ravel(), weight.ravel(), dim=0) > 0.98
