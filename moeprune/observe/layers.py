"""Where a live model keeps the experts and the router of each MoE layer."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, cast

from torch import nn

from moeprune.core.layout import MoeLayout
from moeprune.errors import UnsupportedModelError

# Other Mixtures of Experts that a wrapper may hold beside the language model.
ELSEWHERE = re.compile(
    r"(^|\.)(vision_tower|vision_model|visual|vision_encoder|audio_tower|audio_encoder|talker|mtp)(\.|$)"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeLayer:
    """One MoE layer of a live model, in one of the stacks that it is part of.

    Attributes:
        row: index into ``MoeLayout.layer_ids``; layers that share their experts share the row.
        layer: the layer's number in the checkpoint.
        num_experts: E.
        experts: the module that holds all routed experts.
        router: the module that scores them.
        num_idle: choices after the last expert's that a token may take instead.
        held: the experts that are here, where others are in other processes; None: all are.
        num_extra: outputs of the router after those of its experts, idle choices among them.
        block: the module that the router is a part of.
    """

    row: int
    layer: int
    num_experts: int
    experts: nn.Module
    router: nn.Module
    num_idle: int = 0
    held: range | None = None
    num_extra: int = 0
    block: nn.Module | None = None

    @property
    def num_outputs(self) -> int:
        """Outputs of the router."""
        return self.num_experts + max(self.num_extra, self.num_idle)


def moe_layers(model: nn.Module, layout: MoeLayout) -> tuple[MoeLayer, ...]:
    """Find the modules of every MoE layer of the layout, under ``layers.<i>.`` or ``blocks.<i>.``.

    Returns:
        One entry a row, rows ascending; of a layout with several stacks, one a row and stack.

    Raises:
        UnsupportedModelError: a layer's experts or router are missing, or found twice.
    """
    modules = {name: module for name, module in model.named_modules() if not ELSEWHERE.search(name)}
    found = []
    for row, (layer, experts_name, router_name) in enumerate(_named(layout)):
        for stack in layout.stacks or ("",):
            experts = _only(modules, stack, layer, experts_name, layout.model_type)[1]
            path, router = _only(modules, stack, layer, router_name, layout.model_type)
            found.append(
                MoeLayer(
                    row=row,
                    layer=layer,
                    num_experts=layout.num_experts[row],
                    experts=experts,
                    router=router,
                    num_idle=layout.idle_experts,
                    held=_held(experts),
                    num_extra=layout.extra_rows,
                    block=model.get_submodule(path.rpartition(".")[0]),
                )
            )
    return tuple(found)


def _held(experts: nn.Module) -> range | None:
    """The experts of this process, where transformers' expert parallelism has spread them."""
    if not getattr(experts, "_is_expert_parallel", False):
        return None
    first: Any = next(weight for weight in experts.parameters(recurse=False) if weight.ndim == 3)
    number = int(cast(Any, experts).num_experts)
    start = number * int(first.device_mesh.get_local_rank())
    return range(start, start + number)


def decoder_layers(model: nn.Module, layout: MoeLayout) -> tuple[nn.Module, ...]:
    """Every layer, dense ones too, of the stack that holds the MoE layers; number i is layer i.

    Raises:
        UnsupportedModelError: the MoE layers are not all in one stack, or not found at all.
    """
    paths = {id(module): name for name, module in model.named_modules()}
    stacks = set()
    for layer in moe_layers(model, layout):
        found = re.match(
            rf"((?:.*?\.)?(?:layers|blocks))\.{layer.layer}\.", paths[id(layer.experts)]
        )
        assert found is not None  # moe_layers looks for nothing else
        stacks.add(found[1])
    if len(stacks) != 1:
        raise UnsupportedModelError(
            f"the MoE layers of family {layout.model_type} lie in {len(stacks)} stacks of layers "
            f"({', '.join(sorted(stacks))}), and the model can judge plans only where one stack "
            "reads a text. Use a method that plans from the stats alone."
        )
    return tuple(model.get_submodule(stacks.pop()).children())


def _named(layout: MoeLayout) -> Iterator[tuple[int, str, str]]:
    """Layer, and names of its experts and router modules, for each row."""
    main = (layout.experts_module, layout.router_module)
    for layer, expert_set in layout.rows:
        yield (layer, *(layout.set_modules[expert_set] if expert_set else main))


def _only(
    modules: dict[str, nn.Module], stack: str, layer: int, name: str, model_type: str
) -> tuple[str, nn.Module]:
    inside = rf"(^|\.){re.escape(stack)}\.(.+\.)?" if stack else r"(^|\.)"
    wanted = re.compile(rf"{inside}(layers|blocks)\.{layer}\.{re.escape(name)}$")
    found = [path for path in modules if wanted.search(path)]
    if len(found) != 1:
        where = f"{stack}…layers" if stack else "layers"
        raise UnsupportedModelError(
            f"layer {layer} of the loaded model has {len(found)} modules "
            f"'{where}.{layer}.{name}', expected one; the description of family {model_type} "
            "does not fit this version of transformers."
        )
    return found[0], modules[found[0]]
