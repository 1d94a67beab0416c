"""The Hugging Face Hub: resolving ids, the model card, uploads."""
