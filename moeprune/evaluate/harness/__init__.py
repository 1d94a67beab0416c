"""Tasks of EleutherAI's lm-evaluation-harness by name, asked of a loaded model."""
