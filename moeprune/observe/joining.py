"""How the processes of a launch find each other: through the store that their launcher keeps."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from datetime import timedelta
from typing import TYPE_CHECKING

from moeprune.errors import UsageError
from moeprune.observe.launch import Launch

if TYPE_CHECKING:
    from torch.distributed.distributed_c10d import Store

_JOIN = timedelta(minutes=30)  # a machine that has not come by then does not come
_TALK = timedelta(hours=2)  # processes meet before they talk, but may read a model meanwhile


def join(launch: Launch, *, gpu: bool, leaving: ExitStack) -> Store:
    """Wait for the others.

    Args:
        launch: who this process is.
        gpu: tensors on GPUs are sent as well, where there are some.
        leaving: told what to do at the end.

    Returns:
        A store for this job alone.

    Raises:
        UsageError: they do not come, or the program has joined them already.
    """
    import torch
    import torch.distributed as dist
    from torch.distributed.distributed_c10d import PrefixStore
    from torch.distributed.rendezvous import rendezvous

    if dist.is_initialized():
        raise UsageError(
            "torch.distributed is in use already, and calibrate joins the processes of a launch "
            "itself. Leave torch.distributed first, or calibrate in a program of its own."
        )
    gpus = gpu and torch.cuda.is_available() and dist.is_nccl_available()
    with reached("the other processes of this launch"):
        store, rank, world = next(iter(rendezvous("env://", timeout=_JOIN)))
        # A script may calibrate several times, and a launcher's store outlives each.
        turn = store.add(f"moeprune turns {launch.rank}", 1)
        store = PrefixStore(f"moeprune {turn}", store)
        dist.init_process_group(
            "cpu:gloo,cuda:nccl" if gpus else "gloo",
            store=PrefixStore("group", store),
            rank=rank,
            world_size=world,
            timeout=_TALK,
        )
    leaving.callback(dist.destroy_process_group)
    return store


@contextmanager
def reached(what: str) -> Iterator[None]:
    """Turn failing connections into one line."""
    try:
        yield
    except RuntimeError as problem:  # of which those of torch.distributed are kinds
        reason = " ".join(str(problem).split())[:200]
        raise UsageError(
            f"cannot reach {what} ({reason}). Look whether all were started and are still there."
        ) from problem
