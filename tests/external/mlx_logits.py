"""FOLDER IDS.json OUT.npz: the logits that mlx-lm computes for one row of token ids."""

import importlib.metadata
import json
import sys
from pathlib import Path

import mlx.core as mx
import numpy as np
from mlx_lm.utils import load_model

folder, ids, result = map(Path, sys.argv[1:])
mx.set_default_device(mx.cpu)
model, _ = load_model(folder, strict=True)
logits = model(mx.array([json.loads(ids.read_text())]))[0].astype(mx.float32)
version = importlib.metadata.version("mlx-lm")
np.savez(result, logits=np.array(logits), version=version)
