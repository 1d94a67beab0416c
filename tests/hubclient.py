"""Run moeprune's Hub calls in a fresh process whose huggingface_hub talks to a local server.

``python hubclient.py '[["push", [args], {options}], ...]'`` prints one JSON line a call.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import traceback
from pathlib import Path
from typing import Any

KEPT = ("PATH", "PYTHONPATH", "LANG", "TMPDIR", "COVERAGE_PROCESS_START")


def environment(url: str, *, home: Path, **more: str) -> dict[str, str]:
    """Environment of a process that talks to the Hub at ``url`` and keeps its cache in ``home``."""
    env = {name: os.environ[name] for name in KEPT if name in os.environ}
    return env | {
        "HF_ENDPOINT": url,
        "HF_HOME": str(home),
        "HOME": str(home),
        "HF_HUB_DISABLE_XET": "1",  # plain LFS: the other transfer needs a storage service
        "HF_HUB_DISABLE_TELEMETRY": "1",
        "HF_HUB_ETAG_TIMEOUT": "5",
        "NO_PROXY": "127.0.0.1,localhost",
        **more,
    }


def call_client(
    url: str, calls: list[tuple[str, list[Any], dict[str, Any]]], *, home: Path, **more: str
) -> tuple[list[dict[str, Any]], str]:
    """Make ``calls``; returns an outcome for each, and everything the process printed."""
    done = subprocess.run(
        [sys.executable, __file__, json.dumps(calls)],
        env=environment(url, home=home, **more),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1]), done.stdout + done.stderr


def _main() -> None:
    from moeprune.errors import MoePruneError
    from moeprune.hub.resolve import resolve_model
    from moeprune.stages.eval import eval as evaluate
    from moeprune.stages.export import export
    from moeprune.stages.inspect import inspect
    from moeprune.stages.push import push
    from moeprune.stages.verify import verify

    functions = {
        "push": push,
        "resolve": resolve_model,
        "export": export,
        "inspect": inspect,
        "eval": lambda *args, **options: json.dumps(evaluate(*args, **options)[0].header()),
        "verify": lambda *args, **options: json.dumps(verify(*args, **options).to_json()),
    }
    outcomes = []
    for name, args, options in json.loads(sys.argv[1]):
        reports: list[tuple[int, int]] = []
        if name in ("push", "export", "verify"):
            options["on_progress"] = lambda p, seen=reports: seen.append((p.done, p.total))
        try:
            outcomes.append({"result": str(functions[name](*args, **options)), "progress": reports})
        except MoePruneError as error:
            chain = [str(error)]
            seen: BaseException | None = error
            while seen := (seen.__cause__ or seen.__context__):
                chain.append(str(seen))
            outcomes.append(
                {
                    "error": type(error).__name__,
                    "text": str(error),
                    "everything": traceback.format_exc() + repr(chain),
                    "links": len(chain),
                }
            )
    print(json.dumps(outcomes))


if __name__ == "__main__":
    _main()
