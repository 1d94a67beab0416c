"""A model larger than memory: its weights come from the files a unit at a time.

Every batch of a wave runs the model's own forward pass and waits where a unit, say a layer, is not
in memory; the unit is loaded once, all waiting batches go through it, and it is freed.
"""
