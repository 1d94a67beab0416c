"""All experts of a layer in one tensor, expert axis first: ``experts.gate_up_proj`` (E, …).

What a stored format keeps beside the weight (``_bias``, ``_blocks``, ``_scales``, ``_scale_inv``,
…) has the same first axis, or holds one number for all experts and stays.
"""

from __future__ import annotations

import math
import re

from moeprune.architectures._match import ExpertMatch
from moeprune.core.layout import TensorInfo
from moeprune.errors import CheckpointError

_UNDER_EXPERTS = re.compile(
    r"(?P<container>(?:.+\.)?experts)\."
    r"(?:gate_up_proj|gate_proj|up_proj|down_proj|w13_weight|w2_weight|fc1|fc2"
    r"|input_linear|output_linear)(?:[._].*)?"
)
# Granite, JetMoE and Step keep the stack in the block itself. A dense block may have the same
# names; there the weight is a matrix.
_UNDER_BLOCK = re.compile(
    r"(?P<container>.+\.(?:block_sparse_moe|mlp))\.(?:input|output)_linear(?:[._].*)?"
    r"|(?P<moe>.+\.moe)\.(?:gate|up|down)_proj(?:[._].*)?"
)


def match(name: str, info: TensorInfo, *, num_experts: int) -> ExpertMatch | None:
    """Match one stored name; see :class:`ExpertMatch`.

    Raises:
        CheckpointError: the tensor holds a stack of another number of experts.
    """
    found = _UNDER_EXPERTS.fullmatch(name)
    sure = found is not None
    found = found or _UNDER_BLOCK.fullmatch(name)
    if found is None:
        return None
    if info.shape[:1] == (num_experts,):
        groups = found.groupdict()
        return ExpertMatch(container=groups["container"] or groups["moe"], axis=0)
    if not is_shared(info) and (sure or len(info.shape) == 3):
        raise CheckpointError(
            f"tensor {name!r} is {list(info.shape)}, but config.json states {num_experts} experts: "
            "its first axis should be the experts. Correct config.json."
        )
    return None


def is_shared(info: TensorInfo) -> bool:
    """Whether a tensor beside fused weights is one number for all experts."""
    return math.prod(info.shape) == 1
