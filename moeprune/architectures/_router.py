"""Which tensors of a MoE block are its router's, and on which axis they count experts."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping

from moeprune.architectures._families import Family
from moeprune.architectures._match import block_path
from moeprune.core.layout import ExpertTensor, TensorInfo
from moeprune.errors import UnsupportedModelError

_WEIGHT = (
    r"(?:gate|router)(?:\.(?:wg|gate|proj|layer|classifier|router_mlp\.out_proj))?\.weight"
    r"(?:_[0-9]+)?"
)
ROUTER_NAME = re.compile(
    rf"(?P<weight>{_WEIGHT})|{_WEIGHT}_.+"
    r"|(?:gate|router)(?:\.(?:wg|gate|proj|layer|classifier|router_mlp\.out_proj))?\.bias"
    r"|(?:(?:gate|router|moe_statics|experts)\.)?"
    r"(?:expert_bias|e_score_correction_bias|router_bias|per_expert_scale|balancing_biases)"
)
_TABLE = re.compile(r"(?:gate|router)\.tid2eid")
_IN_LAYER = re.compile(r"moe\.router\.expert_bias")  # Kolibri keeps it beside the block


def router_tensors(
    tensors: Mapping[str, TensorInfo],
    *,
    container: str,
    layer_prefix: str,
    row: int,
    follows: bool,
    num_experts: int,
    extra: int,
    family: Family,
) -> dict[str, ExpertTensor]:
    """The router tensors of the block that owns ``container``.

    Args:
        tensors: the tensors of the layer.
        container: path of the experts module.
        layer_prefix: path of the layer.
        row: see :class:`ExpertTensor`.
        follows: see :class:`ExpertTensor`.
        num_experts: routed experts of the layer.
        extra: rows that follow the last expert's, where the family has them.
        family: of the model.

    Raises:
        UnsupportedModelError: no router weight, or a router tensor without an axis of experts.
    """
    block = block_path(container)
    found: dict[str, ExpertTensor] = {}
    weights = 0
    for name, info in tensors.items():
        inner = name.removeprefix(f"{block}.")
        if _TABLE.fullmatch(inner):
            _check_table(name, info)
            found[name] = ExpertTensor(row=row, role="table", follows=follows)
            continue
        # A module of experts may hold its own router (JetMoE's attention).
        in_block = (
            ROUTER_NAME.fullmatch(inner.removeprefix("experts."))
            if name.startswith(f"{container}.")
            else ROUTER_NAME.fullmatch(inner)
        )
        if in_block is None and _IN_LAYER.fullmatch(name.removeprefix(f"{layer_prefix}.")) is None:
            continue
        place = _expert_axis(info, num_experts=num_experts, extra=extra, first=family.router_axis)
        if place is None:
            if math.prod(info.shape) == 1:  # one scale for the whole router
                continue
            raise UnsupportedModelError(
                f"router tensor {name!r} is {list(info.shape)}: none of its axes counts the "
                f"{num_experts} experts of its layer."
            )
        axis, rest = place
        weights += in_block is not None and in_block["weight"] is not None
        found[name] = ExpertTensor(row=row, role="router", axis=axis, extra=rest, follows=follows)
    if not weights:
        raise UnsupportedModelError(
            f"{block} has {num_experts} experts, but no router weight beside them that moeprune "
            "can cut (gate.weight, router.weight, …)."
        )
    if weights > family.stored_sets:
        raise UnsupportedModelError(f"{block} has {weights} routers; moeprune can cut one a layer.")
    return found


def _check_table(name: str, info: TensorInfo) -> None:
    if info.dtype not in ("I64", "I32") or len(info.shape) != 2:
        raise UnsupportedModelError(
            f"{name!r} is {info.dtype}{list(info.shape)}; a table of expert numbers has whole "
            "numbers and two axes."
        )


def _expert_axis(
    info: TensorInfo, *, num_experts: int, extra: int, first: int
) -> tuple[int, int] | None:
    """(axis, rows after the last expert's), or None where no axis counts the experts."""
    axes = sorted(enumerate(info.shape), key=lambda item: item[0] != first)
    for axis, size in axes:
        if size == num_experts + extra:
            return axis, extra
        if size == num_experts:
            return axis, 0
    return None
