"""FOLDER IDS.json OUT.npz [OPTIONS.json]: the log-probabilities that vLLM computes for token ids.

vLLM states no logits, and nothing for the first token: row i of the result is what position i says
of the token after it, and the last position has no row. OPTIONS are further arguments of ``LLM``,
and ``plain_experts``: quantised experts are read as vLLM reads them, and computed as plain numbers.
"""

import importlib.metadata
import json
import os
import sys
from pathlib import Path

os.environ.update(
    VLLM_ENABLE_V1_MULTIPROCESSING="0",  # in this process: no second start-up
    VLLM_CPU_KVCACHE_SPACE="1",
    VLLM_CPU_OMP_THREADS_BIND="nobind",
    VLLM_NO_USAGE_STATS="1",
    HF_HUB_OFFLINE="1",
)

import numpy as np
from vllm import LLM, SamplingParams

if __name__ == "__main__":  # vLLM may start processes that import this file
    folder, ids, result, *more = map(Path, sys.argv[1:])
    tokens = json.loads(ids.read_text())
    options = {
        "dtype": "float32",
        "enforce_eager": True,
        "skip_tokenizer_init": True,
        "max_logprobs": -1,
        "max_model_len": 256,
        "max_num_seqs": 1,
    }
    for file in more:
        options |= json.loads(file.read_text())
    if options.pop("plain_experts", False):
        sys.path.insert(0, str(Path(__file__).parent))
        import vllm_plain_experts

        vllm_plain_experts.install()
    model = LLM(model=str(folder), **options)
    wanted = SamplingParams(max_tokens=1, prompt_logprobs=-1, detokenize=False)
    (answer,) = model.generate([{"prompt_token_ids": tokens}], wanted)
    rows = answer.prompt_logprobs[1:]
    logprobs = np.array([[row[token].logprob for token in range(len(row))] for row in rows])
    np.savez(result, logprobs=logprobs, version=importlib.metadata.version("vllm-cpu"))
