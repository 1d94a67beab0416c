"""Experts as tensors of their own: ``experts.<number>.<anything>``.

Everything after the number moves along with the expert: weights, biases, and whatever a stored
format keeps beside them (scales, zero points, packed shapes).
"""

from __future__ import annotations

import re

from moeprune.architectures._match import ExpertMatch
from moeprune.core.layout import TensorInfo

_NAME = re.compile(r"(?P<container>(?:.+\.)?experts)\.(?P<expert>0|[1-9][0-9]{0,8})\.(?P<part>.+)")


def match(name: str, info: TensorInfo, *, num_experts: int) -> ExpertMatch | None:
    """Match one stored name; see :class:`ExpertMatch`."""
    found = _NAME.fullmatch(name)
    if found is None:
        return None
    return ExpertMatch(
        container=found["container"], expert=int(found["expert"]), part=found["part"]
    )
