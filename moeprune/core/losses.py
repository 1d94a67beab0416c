"""The loss that ``calibrate --loss-aware`` takes, where the user leaves something open."""

from __future__ import annotations

LOSSES = ("completion", "all")
"""Target tokens: of rows with a prompt, the answers alone; or all of every row."""

TEMPERATURE = 3.0
"""By which logits are divided in the loss whose gradient is taken.

A trained model is sure of most tokens, and the gradient of their loss is next to nothing, though
without some expert it may be wrong about them. At 1 what is measured is a few tokens that it gets
wrong; at 3 the changes rank experts far more as removing them does (docs/loss-aware.md).
"""
