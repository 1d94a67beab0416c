"""How the cost of a token reads on a terminal."""

from __future__ import annotations

from typing import TYPE_CHECKING

from moeprune.cli.text import size
from moeprune.core.sizes import count

if TYPE_CHECKING:
    from moeprune.core.cost import Activated, Cost


def token_text(token: Activated) -> str:
    """What a token activates, on one line."""
    shared = f", {count(token.shared)} in shared ones" if token.shared else ""
    return (
        f"a token activates {count(token.total)} parameters ({count(token.routed)} in routed "
        f"experts{shared}); decoding it alone reads {size(token.bytes_per_token)}"
    )


def cost_text(cost: Cost) -> list[str]:
    """What a policy, a plan or both change of it; no line where there is neither."""
    mine, native = cost.activated, cost.native
    if mine == native:
        return []
    read = (
        "decoding one token alone reads "
        f"{size(native.bytes_per_token)} -> {size(mine.bytes_per_token)}"
    )
    if mine.routed == native.routed:
        fewer = [
            f"a token activates {count(mine.total)} parameters, in as many experts as before: "
            "fewer to choose from save memory, not compute"
        ]
        smaller = mine.routed_bytes < native.routed_bytes
        return [*(fewer if mine.total != native.total else []), *([read] if smaller else [])]
    experts = f", all experts {_change(mine.experts, native.experts)}" if mine.shared else ""
    return [
        f"a token activates {count(native.total)} -> {count(mine.total)} parameters "
        f"({_change(mine.total, native.total)}; routed experts "
        f"{_change(mine.routed, native.routed)}{experts})",
        read,
    ]


def _change(mine: int, native: int) -> str:
    return f"{mine / native - 1:+.1%}".replace("-0.0%", "0.0%").replace("+0.0%", "0.0%")
