"""Padded tensors against NumPy, for every place an expert axis can have."""

from __future__ import annotations

import io
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from moeprune.checkpoint.copying import Copier
from moeprune.checkpoint.edits import edits_for
from moeprune.checkpoint.header import TensorEntry
from moeprune.checkpoint.padding import check_paddable, pad_value, padded_edits, write_padded
from moeprune.core.layout import ExpertTensor, MoeLayout, TensorInfo
from moeprune.errors import UnsupportedModelError


def layout(tensors: dict[str, ExpertTensor], experts: int, **changes: object) -> MoeLayout:
    known = {
        "model_type": "glm4_moe",
        "layer_ids": (0, 1),
        "num_experts": (experts, experts),
        "top_k": 1,
        "num_groups": 1,
        "top_groups": 1,
        "gating": "sigmoid",
        "expert_bytes": (1, 1),
        "count_keys": (("num_experts",),),
        "tensors": tensors,
        "experts_module": "mlp.experts",
        "router_module": "mlp.gate",
        "observer": "function",
        "quant_method": None,
    }
    return MoeLayout(**{**known, **changes})  # type: ignore[arg-type]


@given(
    st.lists(st.integers(1, 3), min_size=0, max_size=2),
    st.integers(2, 5),
    st.integers(1, 3),
    st.integers(0, 2),
    st.lists(st.integers(1, 3), min_size=0, max_size=2),
    st.booleans(),
    st.data(),
)
def test_written_bytes_are_those_of_numpy(
    outer: list[int],
    experts: int,
    block: int,
    extra: int,
    inner: list[int],
    bias: bool,
    data: st.DataObject,
) -> None:
    kept = data.draw(st.sets(st.integers(0, experts - 1), min_size=1, max_size=experts - 1))
    ids = tuple(sorted(kept))
    name = "layers.0.mlp.gate.e_score_correction_bias" if bias else "layers.0.mlp.gate.weight"
    shape = (*outer, experts * block + extra, *inner)
    values = np.arange(math.prod(shape), dtype="<f4").reshape(shape) + 1
    axis = len(outer)
    rule = ExpertTensor(row=0, role="router", axis=axis, block=block, extra=extra)
    info = TensorInfo("F32", shape, values.nbytes)
    made = layout({name: rule}, experts)
    keep = [ids, tuple(range(experts))]  # the second layer is whole: it sets the width
    edits = edits_for({name: info}, made, dict(enumerate(keep)))
    (edit,) = padded_edits(edits, {name: info}, made, keep)

    positions = [e * block + i for e in ids for i in range(block)]
    empty = (*outer, (experts - len(ids)) * block, *inner)
    want = np.concatenate(
        [
            values.take(positions, axis=axis),
            np.full(empty, -1e9 if bias else 0, "<f4"),
            values.take(range(experts * block, experts * block + extra), axis=axis),
        ],
        axis=axis,
    )
    assert (edit.info.shape, edit.info.nbytes) == (want.shape, want.nbytes)
    counted: list[int] = []
    target = io.BytesIO()
    copier = Copier(target, counted.append)  # type: ignore[arg-type]
    copier._in_kernel = False
    entry = TensorEntry(info=info, file="x", start=5, end=5 + values.nbytes)
    write_padded(copier, io.BytesIO(b"12345" + values.tobytes()), entry, edit)
    assert target.getvalue() == want.tobytes()
    assert sum(counted) == want.nbytes


def test_the_value_of_a_bias_in_every_type() -> None:
    import torch

    for name, dtype in (("F32", torch.float32), ("BF16", torch.bfloat16), ("F64", torch.float64)):
        stored = torch.frombuffer(bytearray(pad_value(name, fill=-1e9)), dtype=dtype)
        assert torch.equal(stored, torch.tensor([-1e9], dtype=dtype)), name
    half = torch.frombuffer(bytearray(pad_value("F16", fill=-1e9)), dtype=torch.float16)
    assert half == torch.finfo(torch.float16).min
    with pytest.raises(UnsupportedModelError, match="I8"):
        pad_value("I8", fill=-1e9)


BIAS = ExpertTensor(row=0, role="router", axis=0)
WEIGHT = {
    f"layers.{row}.mlp.gate.weight": ExpertTensor(row=row, role="router", axis=0) for row in (0, 1)
}


def biases(last: str) -> dict[str, ExpertTensor]:
    return WEIGHT | {
        f"layers.{row}.mlp.gate.{last}": ExpertTensor(row=row, role="router", axis=0)
        for row in (0, 1)
    }


@pytest.mark.parametrize(
    ("tensors", "changes", "match"),
    [
        (biases("e_score_correction_bias"), {}, None),
        (biases("bias"), {}, None),
        (biases("bias"), {"gating": "softmax"}, None),
        (biases("e_score_correction_bias"), {"gating": "softmax"}, "independent scores"),
        (WEIGHT, {}, "has no bias"),
        (WEIGHT | {"layers.0.mlp.gate.bias": BIAS}, {}, "layer 1"),
        (biases("bias"), {"num_groups": 2}, "2 groups"),
        (biases("bias"), {"model_type": "qwen3_moe"}, "not exact for qwen3_moe"),
        (biases("bias"), {"quant_method": "gptq"}, "gptq"),
        (biases("bias"), {"quant_method": "mxfp4"}, None),
        (biases("bias"), {"quant_method": "fp8"}, None),
    ],
)
def test_where_padding_is_exact(
    tensors: dict[str, ExpertTensor], changes: dict[str, object], match: str | None
) -> None:
    made = layout(tensors, 4, **changes)
    if match is None:
        check_paddable(made)
        return
    with pytest.raises(UnsupportedModelError, match=match):
        check_paddable(made)


def test_one_empty_expert_a_number(tmp_path: Path) -> None:
    names = [f"layers.{r}.mlp.experts.{e}.up.weight" for r in (0, 1) for e in range(4)]
    tensors = {name: TensorInfo("F16", (3, 2), 12) for name in names}
    tensors |= {
        f"layers.{r}.mlp.experts.{e}.up.scale": TensorInfo("F16", (), 2)
        for r in (0, 1)
        for e in range(4)
    }
    rules = {
        name: ExpertTensor(row=int(name[7]), role="expert", expert=int(name.split(".")[4]))
        for name in tensors
    }
    made, keep = layout(rules, 4), [(1,), (0, 2, 3)]
    edits = edits_for(tensors, made, dict(enumerate(keep)))
    padded = padded_edits(edits, tensors, made, keep)
    assert {edit.target for edit in padded} == {
        f"layers.{r}.mlp.experts.{e}.up.{part}"
        for r in (0, 1)
        for e in range(3)
        for part in ("weight", "scale")
    }
    assert len(padded) == 12
    empty = [edit for edit in padded if edit.pad]
    assert sorted(edit.target for edit in empty) == sorted(
        f"layers.0.mlp.experts.{e}.up.{part}" for e in (1, 2) for part in ("weight", "scale")
    )
    for edit in empty:
        target = io.BytesIO()
        entry = TensorEntry(info=tensors[edit.source], file="x", start=0, end=edit.info.nbytes)
        copier = Copier(target, lambda count: None)  # type: ignore[arg-type]
        write_padded(copier, io.BytesIO(b"\xff" * 12), entry, edit)
        assert target.getvalue() == bytes(tensors[edit.source].nbytes)
