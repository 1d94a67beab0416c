from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moeprune.checkpoint.edits import edits_for, row_runs
from moeprune.checkpoint.header import nbytes_of
from moeprune.core.layout import ExpertTensor, MoeLayout, TensorInfo
from moeprune.errors import CheckpointError, PlanError, UnsupportedModelError


def info(dtype: str, *shape: int) -> TensorInfo:
    return TensorInfo(dtype, shape, nbytes_of(dtype, shape))


def layout(tensors: dict[str, ExpertTensor], num_experts: tuple[int, ...] = (4,)) -> MoeLayout:
    rows = len(num_experts)
    return MoeLayout(
        model_type="x",
        layer_ids=tuple(range(3, 3 + rows)),
        num_experts=num_experts,
        top_k=1,
        num_groups=1,
        top_groups=1,
        gating="softmax",
        expert_bytes=(1,) * rows,
        count_keys=(("num_experts",),),
        tensors=tensors,
        experts_module="mlp.experts",
        router_module="mlp.gate",
        observer="function",
        quant_method=None,
    )


def on_axis(axis: int, **more: Any) -> ExpertTensor:
    return ExpertTensor(row=0, role="expert", axis=axis, **more)


def expert(number: int, row: int = 0) -> ExpertTensor:
    return ExpertTensor(row=row, role="expert", expert=number)


def test_per_expert_tensors_are_dropped_and_renumbered() -> None:
    names = {f"model.layers.3.mlp.experts.{e}.{p}.weight": e for e in range(4) for p in "ab"}
    tensors: dict[str, TensorInfo] = {}
    for name in names:
        tensors[name] = info("BF16", 2, 3)
        tensors[f"{name}_scale_inv"] = info("F32", 1)
    rules = {name: expert(int(name.split(".")[5])) for name in tensors}
    tensors["model.layers.3.mlp.shared_experts.3.weight"] = info("BF16", 2)
    edits = edits_for(tensors, layout(rules), {0: (1, 3)})
    renamed = {edit.source: edit.target for edit in edits}
    assert renamed == {
        name: name.replace(".experts.1.", ".experts.0.").replace(".experts.3.", ".experts.1.")
        for name in tensors
        if ".experts.0." not in name and ".experts.2." not in name
    }
    assert all(edit.ids is None and edit.info == tensors[edit.source] for edit in edits)
    assert [edit.source for edit in edits] == [name for name in tensors if name in renamed]


def test_the_number_that_moves_is_the_one_the_layout_means() -> None:
    name = "experts.7.layers.3.mlp.experts.2.w"
    assert [
        e.target for e in edits_for({name: info("U8", 1)}, layout({name: expert(2)}), {0: (2,)})
    ] == ["experts.7.layers.3.mlp.experts.0.w"]
    for name in ("experts.2.layers.3.experts.2.w", "layers.3.experts.9.w", "layers.3.experts.2"):
        with pytest.raises(UnsupportedModelError, match="which number"):
            edits_for({name: info("U8", 1)}, layout({name: expert(2)}), {0: (2,)})


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_slices_equal_numpy(data: st.DataObject) -> None:
    """The kept bytes, in order, are those numpy selects; and their number is the result's."""
    experts, block, extra = (data.draw(st.integers(low, 4)) for low in (1, 1, 0))
    before = data.draw(st.lists(st.integers(1, 3), max_size=2))
    after = data.draw(st.lists(st.integers(1, 3), max_size=2))
    dtype = data.draw(st.sampled_from(["U8", "F16", "F64"]))
    ids = tuple(sorted(data.draw(st.sets(st.integers(0, experts - 1), min_size=1))))
    shape = (*before, experts * block + extra, *after)
    axis = len(before)
    array = np.arange(np.prod(shape), dtype={"U8": "u1", "F16": "f2", "F64": "f8"}[dtype])
    array = array.reshape(shape)
    rule = on_axis(axis, block=block, extra=extra)
    (edit,) = edits_for({"t": info(dtype, *shape)}, layout({"t": rule}, (experts,)), {0: ids})
    positions = [e * block + b for e in ids for b in range(block)]
    positions += range(experts * block, experts * block + extra)
    expected = np.take(array, positions, axis=axis)
    raw = array.tobytes()
    runs = list(row_runs(edit, info(dtype, *shape)))
    assert b"".join(raw[start:end] for start, end in runs) == expected.tobytes()
    assert edit.info == info(dtype, *expected.shape)
    assert (edit.ids is None) == (len(ids) == experts)


def test_adjacent_experts_move_as_one_run() -> None:
    tensor = info("BF16", 8, 5)
    rule = on_axis(0, block=1, extra=2)
    (edit,) = edits_for({"t": tensor}, layout({"t": rule}, (6,)), {0: (1, 2, 5)})
    assert list(row_runs(edit, tensor)) == [(10, 30), (50, 80)]  # expert 5 and the extra rows


def test_packed_types_are_cut_on_whole_bytes_only() -> None:
    (edit,) = edits_for({"t": info("F4", 4, 2)}, layout({"t": on_axis(0)}), {0: (0, 3)})
    assert list(row_runs(edit, info("F4", 4, 2))) == [(0, 1), (3, 4)]
    (edit,) = edits_for({"t": info("F4", 4)}, layout({"t": on_axis(0)}), {0: (2, 3)})
    assert edit.info == info("F4", 2)
    (edit,) = edits_for({"t": info("F6_E2M3", 4, 4)}, layout({"t": on_axis(0)}), {0: (1, 2)})
    assert list(row_runs(edit, info("F6_E2M3", 4, 4))) == [(3, 9)]
    for shape, axis, ids in (((4, 3), 0, (0, 1, 2)), ((4,), 0, (1,)), ((4, 4), 1, (1, 2))):
        with pytest.raises(UnsupportedModelError, match="whole bytes"):
            edits_for({"t": info("F4", *shape)}, layout({"t": on_axis(axis)}), {0: ids})


def test_empty_tensors_stay_empty() -> None:
    tensor = info("F32", 0, 4, 3)
    (edit,) = edits_for({"t": tensor}, layout({"t": on_axis(1)}), {0: (1,)})
    assert edit.info.shape == (0, 1, 3) and list(row_runs(edit, tensor)) == []
    tensor = info("F32", 4, 0)
    (edit,) = edits_for({"t": tensor}, layout({"t": on_axis(0)}), {0: (1,)})
    assert edit.info.shape == (1, 0) and list(row_runs(edit, tensor)) == []


@pytest.mark.parametrize("ids", [(), (0, 0), (1, 0), (-1,), (4,), (0, 4)])
def test_ids_that_are_not_the_layers_are_refused(ids: tuple[int, ...]) -> None:
    with pytest.raises(PlanError, match="layer 3 has experts 0 to 3"):
        edits_for({"t": info("U8", 4)}, layout({"t": on_axis(0)}), {0: ids})


def test_every_layer_needs_its_ids() -> None:
    two = layout({"t": on_axis(0)}, (4, 2))
    with pytest.raises(PlanError, match="layer 4 has experts 0 to 1"):
        edits_for({"t": info("U8", 4)}, two, {0: (1,)})
    with pytest.raises(PlanError, match="3 layers, the model 2"):
        edits_for({"t": info("U8", 4)}, two, {0: (1,), 1: (1,), 2: (1,)})


def test_contradictions_with_the_layout_are_refused() -> None:
    with pytest.raises(CheckpointError, match="no tensor 't'"):
        edits_for({"u": info("U8", 4)}, layout({"t": on_axis(0)}), {0: (1,)})
    with pytest.raises(CheckpointError, match="need 4 on axis 0"):
        edits_for({"t": info("U8", 5)}, layout({"t": on_axis(0)}), {0: (1,)})
    with pytest.raises(CheckpointError, match="need 4 on axis 1"):
        edits_for({"t": info("U8", 4)}, layout({"t": on_axis(1)}), {0: (1,)})
    twice = {"experts.1.w": info("U8", 1), "experts.0.w": info("U8", 1)}
    with pytest.raises(CheckpointError, match=r"would both become 'experts\.0\.w'"):
        edits_for(twice, layout({"experts.1.w": expert(1)}), {0: (1, 2)})
