"""Runs that are stopped after a number of batches, and runs that are killed at a given step."""

from __future__ import annotations


class After:
    """Asks to stop when it is asked for the n-th time."""

    def __init__(self, calls: int) -> None:
        self.left = calls

    def __call__(self) -> bool:
        self.left -= 1
        return self.left == 0


# In front of a program for ``forked.run``: it names the folder ``work``, which ``job`` writes into.
# ``run`` says whether the job came to its end; ``dies_at=-1`` counts the steps and kills nothing.
PRELUDE = """
import os, random, shutil, signal, sys, time
from pathlib import Path
import torch
torch.set_num_threads(1)
import moeprune

STEPS = {"open", "os.mkdir", "os.rename", "os.remove", "os.rmdir", "os.chmod", "os.truncate"}
os.fsync = lambda handle: None  # a kill loses nothing that a system call has written

def run(job, dies_at=None, after=None):
    child = os.fork()
    if child:
        if after is not None:
            time.sleep(after)
            os.kill(child, signal.SIGKILL)
        _, status = os.waitpid(child, 0)
        assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0, (dies_at, status)
        return not os.WIFSIGNALED(status)
    steps = 0
    def hook(event, arguments):
        nonlocal steps
        if event in STEPS and str(work) in str(arguments[0]):
            if steps == dies_at:
                os.kill(os.getpid(), signal.SIGKILL)
            steps += 1
    if dies_at is not None:
        sys.addaudithook(hook)
    try:
        job()
    except BaseException as problem:
        os.write(2, repr(problem).encode())
        os._exit(1)
    (work.parent / "steps").write_text(str(steps))
    os._exit(0)

def files():
    return {str(p.relative_to(work)): p.read_bytes() for p in work.rglob("*") if p.is_file()}

def clear():
    for path in work.iterdir():
        shutil.rmtree(path) if path.is_dir() else path.unlink()
"""
