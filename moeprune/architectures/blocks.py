"""All experts of a layer as consecutive blocks of rows of one matrix (DBRX): (E · rows, …)."""

from __future__ import annotations

import re

from moeprune.architectures._match import ExpertMatch
from moeprune.core.layout import TensorInfo
from moeprune.errors import CheckpointError

_NAME = re.compile(r"(?P<container>.+\.ffn\.experts)\.mlp\.(?:w1|v1|w2)")


def match(name: str, info: TensorInfo, *, num_experts: int) -> ExpertMatch | None:
    """Match one stored name; see :class:`ExpertMatch`.

    Raises:
        CheckpointError: the rows are not a multiple of the experts.
    """
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    rows = info.shape[0] if info.shape else 0
    if rows < num_experts or rows % num_experts:
        raise CheckpointError(
            f"tensor {name!r} is {list(info.shape)}: its rows are not a multiple of the "
            f"{num_experts} experts that config.json states. Correct config.json."
        )
    return ExpertMatch(container=found["container"], axis=0, block=rows // num_experts)
