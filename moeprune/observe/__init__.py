"""Calibration: token batches, the model, the observing experts function, the sums."""
