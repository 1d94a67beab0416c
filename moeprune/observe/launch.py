"""Which of the processes of a launch this is, as torchrun and accelerate tell it.

Both start the same command several times and number the processes in the environment.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass

from moeprune.errors import UsageError


@dataclass(frozen=True, slots=True, kw_only=True)
class Launch:
    """One process of a launch.

    Attributes:
        rank: its number.
        world: how many there are, on all machines.
        local_rank: its number on this machine.
        local_world: how many there are on this machine.
        cpu: the launcher was told to use no GPU.
    """

    rank: int = 0
    world: int = 1
    local_rank: int = 0
    local_world: int = 1
    cpu: bool = False

    @property
    def speaks(self) -> bool:
        """Whether this is the process whose words a user reads."""
        return self.rank == 0


def launched(environment: Mapping[str, str] | None = None) -> Launch:
    """Read the environment; a process that nobody numbered is alone.

    Args:
        environment: to read; None: of this process.

    Raises:
        UsageError: it is not what a launcher writes.
    """
    found = os.environ if environment is None else environment
    cpu = found.get("ACCELERATE_USE_CPU", "").lower() in ("1", "true", "yes")
    if "RANK" not in found or "WORLD_SIZE" not in found:  # either alone is another program's
        return Launch(cpu=cpu)
    rank, world = _number(found, "RANK"), _number(found, "WORLD_SIZE")
    local = _number(found, "LOCAL_RANK", rank)
    local_world = _number(found, "LOCAL_WORLD_SIZE", world)
    if not rank < world or not local < local_world:
        raise UsageError(
            f"the environment says RANK={rank}, WORLD_SIZE={world}, LOCAL_RANK={local}, "
            f"LOCAL_WORLD_SIZE={local_world}, which no launcher writes. Unset them, or start with "
            "torchrun or accelerate launch."
        )
    if world > 1 and not ("MASTER_ADDR" in found and "MASTER_PORT" in found):
        raise UsageError(
            f"the environment says RANK={rank} of WORLD_SIZE={world}, but not where the others "
            "are (MASTER_ADDR, MASTER_PORT). Unset both, or start with torchrun or accelerate "
            "launch."
        )
    return Launch(rank=rank, world=world, local_rank=local, local_world=local_world, cpu=cpu)


def _number(environment: Mapping[str, str], name: str, default: int = 0) -> int:
    text = environment.get(name, str(default))
    if not (text.isascii() and text.isdigit()):
        raise UsageError(f"the environment says {name}={text!r}, which is no number. Unset it.")
    return int(text)
