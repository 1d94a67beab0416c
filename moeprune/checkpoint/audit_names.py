"""What a stored tensor is called in an export, derived apart from the code that renames it."""

from __future__ import annotations

import re
from collections.abc import Sequence

from moeprune.core.layout import ExpertTensor

_EXPERT_NUMBER = re.compile(r"(?<=\bexperts\.)(\d+)(?=\.)")


def target_name(
    name: str, rule: ExpertTensor | None, ids: Sequence[int], experts: int
) -> str | None:
    """The name that a tensor has in the export; None: it leaves.

    Args:
        name: in the source.
        rule: how it depends on the experts; None: it does not.
        ids: of its layer, those that stay.
        experts: of its layer, in the source.
    """
    if rule is None or rule.expert is None:
        return name
    # Everything that stays, in order: each set's kept experts, then the idle ones.
    behind = range(experts, max(experts, rule.expert + 1))
    staying = [*ids, *behind] if not rule.shift else [None] * (rule.shift * len(ids)) + list(ids)
    if rule.expert not in staying:
        return None
    return numbered(name, rule.expert + rule.shift * experts, staying.index(rule.expert))


def numbered(name: str, old: int, new: int) -> str:
    """The name with expert ``new`` in place of expert ``old``."""
    return _EXPERT_NUMBER.sub(
        lambda match: str(new) if match[1] == str(old) else match[1], name, count=1
    )
