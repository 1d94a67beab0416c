"""What is recorded of a task of lm-eval: its version, data and configuration."""

from __future__ import annotations

import hashlib
import json
import re
from typing import Any

from moeprune.evaluate.harness.settings import HarnessSettings

# In the order in which they count.
_BUDGET = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")
_DEFAULT = 256
_REVISION = re.compile(r"@([0-9a-f]{40})\b")


def facts_of(built: Any, settings: HarnessSettings) -> dict[str, Any]:
    """What ``run.json`` says of a task of lm-eval."""
    config = built.config
    total = len(built.eval_docs)
    return {
        "version": str(built.VERSION),
        "output_type": _output_type(built),
        **_written(built),
        "shots": int(config.num_fewshot or 0),
        "questions": min(total, settings.limit or total),
        "higher_is_better": {str(k): bool(v) for k, v in built.higher_is_better().items()},
        "dataset": {
            "path": config.dataset_path,
            "name": config.dataset_name,
            "revision": _revision(built),
        },
        "config": _config_hash(built),
    }


def _output_type(built: Any) -> str:
    """A task that is a class may have it there alone."""
    return str(built.OUTPUT_TYPE or built.config.output_type)


def _written(built: Any) -> dict[str, Any]:
    """Budget of an answer, and whether tokens are drawn, by the rules of lm-eval's HFLM."""
    if _output_type(built) != "generate_until":
        return {"max_new_tokens": None, "draws": False}
    stated = built.config.generation_kwargs or {}
    budgets = [stated[name] for name in _BUDGET if stated.get(name) is not None]
    draws = stated.get("do_sample")
    if draws is None:
        draws = float(stated.get("temperature") or 0.0) > 0
    return {"max_new_tokens": int(budgets[0]) if budgets else _DEFAULT, "draws": bool(draws)}


def _revision(built: Any) -> str | None:
    """The commit of the Hub that the questions came from, where it is known."""
    stated = (built.config.dataset_kwargs or {}).get("revision")
    if stated:
        return str(stated)
    data = getattr(built, "dataset", None) or {}
    for split in data.values():
        info = getattr(split, "info", None)
        for url in getattr(info, "download_checksums", None) or ():
            commit = _REVISION.search(str(url))
            if commit:
                return commit[1]
    return None


def _config_hash(built: Any) -> str:
    """Of the task's configuration, wherever its file lies."""
    body = built.dump_config()
    body["metadata"] = {
        key: value for key, value in (body.get("metadata") or {}).items() if key != "config_source"
    }
    if (body.get("dataset_kwargs") or {}).get("data_files"):
        body["dataset_kwargs"] = {**body["dataset_kwargs"], "data_files": None}
    return hashlib.sha256(_dumped(body).encode("utf-8", "surrogatepass")).hexdigest()


def content_of(built: Any, settings: HarnessSettings) -> str:
    """Of the questions, and of those that may stand before them."""
    total = len(built.eval_docs)
    told = hashlib.sha256()
    for number, document in enumerate(built.eval_docs):
        if number >= min(total, settings.limit or total):
            break
        told.update(_dumped(document).encode("utf-8", "surrogatepass"))
    if built.config.num_fewshot:
        for document in built.fewshot_docs() or ():
            told.update(b"\0" + _dumped(document).encode("utf-8", "surrogatepass"))
    return told.hexdigest()


def _dumped(body: Any) -> str:
    return json.dumps(body, sort_keys=True, ensure_ascii=False, default=_plain)


def _plain(value: Any) -> Any:
    text = str(value)
    # The text of an object may hold its address, which changes from run to run.
    return type(value).__name__ if " at 0x" in text else text
