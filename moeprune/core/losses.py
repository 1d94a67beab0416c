"""The loss that ``calibrate --loss-aware`` takes, where the user leaves something open."""

from __future__ import annotations

LOSSES = ("completion", "all")
"""Target tokens: of rows with a prompt, the answers alone; or all of every row."""

TEMPERATURE = 1.0
"""By which logits are divided in the loss whose gradient is taken."""
