"""Programs that begin with torch and transformers imported: a process that has them forks itself.

To import them takes longer than most of what tests start does. ``run`` and ``start`` are like
``subprocess.run`` and ``subprocess.Popen`` with ``sys.executable`` in front, for ``-c CODE``,
``-m MODULE`` or a file, and their arguments. Where a process of its own is the point (what a
program imports, its hash seed, variables that are read at import such as those of the Hub), start
one as ever. moeprune is not imported before the fork.
"""

from __future__ import annotations

import atexit
import functools
import gc
import json
import os
import runpy
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any


def serve() -> None:
    """Fork for each line of stdin that asks for it; answer each with a line."""
    import lm_eval.evaluator  # noqa: F401
    import scipy.optimize  # noqa: F401
    import torch
    import torch.distributed
    import transformers.generation
    import transformers.modeling_utils
    import transformers.models.mixtral.modeling_mixtral
    import transformers.models.qwen3_moe.modeling_qwen3_moe  # noqa: F401

    torch.set_num_threads(1)
    assert "moeprune" not in sys.modules
    gc.collect()
    gc.freeze()  # a child that collects garbage would copy every page of it
    for line in sys.stdin:
        asked = json.loads(line)
        if "wait" in asked:
            pid, status = os.waitpid(asked["wait"], os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if answer == 0:
                become(asked)
        print(json.dumps(answer), flush=True)


def become(asked: dict[str, Any]) -> None:
    """In the child: run the program, and end."""
    for number, name in enumerate(("/dev/null", asked["out"], asked["err"])):
        handle = os.open(name, os.O_WRONLY | os.O_CREAT if number else os.O_RDONLY)
        os.dup2(handle, number)
        os.close(handle)
    os.chdir(asked["cwd"])
    os.environ.clear()
    os.environ.update(asked["env"])
    program(asked["command"])
    raise SystemExit  # what the program itself raises ends this process too, as ever


def program(command: list[str]) -> None:
    """What ``python COMMAND`` runs."""
    first, *rest = command
    added = os.environ.get("PYTHONPATH", "").split(os.pathsep)
    sys.path[:1] = [str(Path(first).parent), *filter(None, added)]
    if first == "-c":
        sys.path[0] = ""
        sys.argv = [first, *rest[1:]]
        exec(compile(rest[0], "<string>", "exec"), {"__name__": "__main__"})
    elif first == "-m":
        sys.path[0] = os.getcwd()
        sys.argv = rest
        runpy.run_module(rest[0], run_name="__main__", alter_sys=True)
    else:
        sys.argv = command
        runpy.run_path(first, run_name="__main__")


@functools.cache
def server() -> subprocess.Popen[str]:
    """One for each process that runs tests, until that one ends."""
    home = tempfile.TemporaryDirectory(prefix="home-")
    caches = {"HF_HOME": home.name, "HF_MODULES_CACHE": str(Path(home.name, "modules"))}
    process = subprocess.Popen(
        [sys.executable, __file__],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, **caches},
    )
    atexit.register(home.cleanup)
    atexit.register(process.communicate)  # first: its stdin is closed, so that it ends
    return process


def ask(**request: Any) -> Any:
    process = server()
    assert process.stdin is not None and process.stdout is not None
    process.stdin.write(json.dumps(request) + "\n")
    process.stdin.flush()
    return json.loads(process.stdout.readline())


class Started:
    """A program that was started; what it writes is read when it has ended."""

    def __init__(
        self, command: Sequence[Any], *, env: Mapping[str, str] | None = None, cwd: Any = None
    ) -> None:
        self.args = list(map(str, command))
        self._folder = tempfile.TemporaryDirectory(prefix="forked-")
        self._files = [Path(self._folder.name, name) for name in ("out", "err")]
        self.returncode: int | None = None
        self.pid = int(
            ask(
                command=self.args,
                env=dict(os.environ if env is None else env),
                cwd=str(cwd or os.getcwd()),
                out=str(self._files[0]),
                err=str(self._files[1]),
            )
        )

    def poll(self) -> int | None:
        if self.returncode is None:
            self.returncode = ask(wait=self.pid)
        return self.returncode

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def wait(self, timeout: float = 300) -> int:
        end = time.monotonic() + timeout
        while (code := self.poll()) is None:
            if time.monotonic() > end:
                self.send_signal(signal.SIGKILL)
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(0.02)
        return code

    def communicate(self, timeout: float = 300) -> tuple[str, str]:
        self.wait(timeout)
        out, err = (file.read_text("utf-8") for file in self._files)
        return out, err


def start(command: Sequence[Any], **how: Any) -> Started:
    """Start a program; ``env`` and ``cwd`` as in subprocess."""
    return Started(command, **how)


def run(
    command: Sequence[Any], *, timeout: float = 300, **how: Any
) -> subprocess.CompletedProcess[str]:
    """Run a program to its end, and say what it wrote."""
    started = start(command, **how)
    out, err = started.communicate(timeout)
    return subprocess.CompletedProcess(started.args, started.wait(), out, err)


def launch(processes: int, *command: str | Path) -> list[Started]:
    """Run a program in processes that meet as those of torchrun do, without its own start.

    A launcher keeps the store in which they meet; here, until all have ended, this process does.
    """
    from torch.distributed import TCPStore

    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    shared = {
        **os.environ,
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        **dict.fromkeys(("WORLD_SIZE", "LOCAL_WORLD_SIZE"), str(processes)),
    }
    ranks = [dict.fromkeys(("RANK", "LOCAL_RANK"), str(rank)) for rank in range(processes)]
    started = [start(command, env={**shared, **rank}) for rank in ranks]
    for process in started:
        process.wait()
    return started


if __name__ == "__main__":
    serve()
