"""Evaluation of live models: logits compared, questions answered."""
