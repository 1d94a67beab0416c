"""The last check of a layout: no tensor that depends on the experts was overlooked."""

from __future__ import annotations

from collections.abc import Collection, Mapping

from moeprune.architectures._match import LayerPath, block_path, is_routed
from moeprune.architectures._router import ROUTER_NAME
from moeprune.architectures.fused import is_shared
from moeprune.core.layout import TensorInfo
from moeprune.errors import UnsupportedModelError


def refuse_leftovers(
    tensors: Mapping[str, TensorInfo],
    placed: Collection[str],
    containers: Mapping[str, LayerPath],
    *,
    num_experts: int,
) -> None:
    """Refuse a model with a tensor that seems to depend on the experts and has no place.

    Args:
        tensors: all tensors of the checkpoint.
        placed: names that the layout covers.
        containers: path of every experts module -> its layer.
        num_experts: routed experts of a layer.

    Raises:
        UnsupportedModelError: there is one; the message names it.
    """
    blocks = {block_path(container): path for container, path in containers.items()}
    # A block that is the layer itself is named by its number, which says nothing.
    block_names = {block.rpartition(".")[2] for block in blocks} - {
        str(path.number) for path in containers.values()
    }
    for name, info in tensors.items():
        if name in placed or not is_routed(name):
            continue
        parts = name.split(".")
        if parts[-1] == "tid2eid":
            raise UnsupportedModelError(
                f"{name!r} routes tokens by a table of expert numbers, but its layer has no "
                "experts that moeprune can find."
            )
        under_experts = any(part.startswith("expert") for part in parts[:-1])
        stacked = parts[-1].startswith("expert") and num_experts in info.shape
        # One value, one norm or one bias that all experts of a layer share stays as it is.
        own_bias = parts[-1] == "bias" and ".".join(parts[:-1]) in containers
        common = own_bias or any(part.endswith("norm") for part in parts)
        common = is_shared(info) or (common and num_experts not in info.shape)
        if (under_experts or stacked) and not common:
            raise UnsupportedModelError(
                f"{name!r} {list(info.shape)} lies among the experts, but moeprune does not know "
                "what it holds."
            )
        block = _owner(parts, blocks)
        if block is None and _lone_router(parts, info, block_names, num_experts=num_experts):
            raise UnsupportedModelError(
                f"{name!r} is a router, but its layer has no experts that moeprune can find."
            )
        if block is not None and _counts_experts(
            name, info, block, blocks[block], num_experts=num_experts
        ):
            raise UnsupportedModelError(
                f"{name!r} {list(info.shape)} has an axis of {num_experts}, the number of experts, "
                "and lies beside a router, but moeprune does not know what it holds."
            )


def _lone_router(
    parts: list[str], info: TensorInfo, block_names: Collection[str], *, num_experts: int
) -> bool:
    """Whether the name is a router's in a layer of which no expert was found."""
    if num_experts not in info.shape:
        return False
    tails = [index + 1 for index, part in enumerate(parts) if part in block_names]
    return any(ROUTER_NAME.fullmatch(".".join(parts[tail:])) for tail in tails)


def _owner(parts: list[str], blocks: Collection[str]) -> str | None:
    paths = (".".join(parts[:end]) for end in range(len(parts) - 1, 0, -1))
    return next((path for path in paths if path in blocks), None)


def _counts_experts(
    name: str, info: TensorInfo, block: str, layer: LayerPath, *, num_experts: int
) -> bool:
    if num_experts not in info.shape:
        return False
    inner = name.removeprefix(f"{block}.").split(".")
    if any(part == "gate" or "router" in part for part in inner):
        return True
    # One value an expert: a bias or scale under a name nobody has seen yet.
    return info.shape == (num_experts,) and block != layer.prefix
