"""Models that run by code of their own: whether their experts are seen and the gating is right.

Only called where the user allows that code. The model is built without memory, as loading it does.
"""

from __future__ import annotations

from pathlib import Path

from moeprune.core.layout import MoeLayout
from moeprune.errors import UnsupportedModelError, UsageError
from moeprune.observe.built import on_meta
from moeprune.observe.gating import gating_of
from moeprune.observe.layers import moe_layers
from moeprune.observe.observers.function import check_readable
from moeprune.observe.probe import listen
from moeprune.observe.quiet import foreign_errors, quiet


def check_foreign(path: Path, layout: MoeLayout) -> None:
    """Check a model that only the Python code in its folder can run; runs that code.

    Args:
        path: the checkpoint folder.
        layout: by the rule set, with the gating that the user states.

    Raises:
        UnsupportedModelError: the code cannot be run, or its experts are not dispatched through
            transformers' registry of experts functions, which is where calibration looks.
        UsageError: its router makes scores another way than stated.
    """
    from transformers import AutoConfig

    with (
        quiet(),
        foreign_errors(
            f"{path}: the code of the checkpoint cannot build its model",
            "Check that it fits this version of transformers.",
            error=UnsupportedModelError,
            also=(ArithmeticError, AssertionError),
        ),
    ):
        config = AutoConfig.from_pretrained(path, trust_remote_code=True)
        model = on_meta(config, trust_remote_code=True)
    layers = moe_layers(model, layout)
    for layer in layers:
        check_readable(layer)
    first = layers[0]
    names = {id(module): name for name, module in model.named_modules()}
    block, _, experts = names[id(first.experts)].rpartition(".")
    try:
        heard = listen(
            model.get_submodule(block),
            experts=experts,
            router=names[id(first.router)].removeprefix(f"{block}."),
            hidden_size=int(config.get_text_config().hidden_size),
            num_experts=first.num_experts,
        )
        gating, observer = gating_of(heard)
    except UnsupportedModelError:
        return  # its block cannot be asked, so the user's word is all there is
    if gating != layout.gating:
        raise UsageError(
            f"--gating {layout.gating} is not what the code of {path} does: its router's weights "
            f"are those of {gating}. Give --gating {gating}."
        )
    if observer != layout.observer or abs(heard.scale - 1) > 1e-6:
        raise UnsupportedModelError(
            f"{path}: its router returns probabilities, or its blocks multiply what their experts "
            "add; a model like that needs a family file (docs/extend.md)."
        )
