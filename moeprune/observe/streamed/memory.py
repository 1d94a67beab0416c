"""How much memory this process may use, and how much it uses."""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from pathlib import Path

import psutil
import torch

_CGROUPS = Path("/sys/fs/cgroup")


def give_back() -> None:
    """Return to the system what the allocator of C keeps; elsewhere than on Linux it decides."""
    if sys.platform == "linux":
        trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's alone
        if trim is not None:
            trim(0)


def used_memory() -> int:
    """Bytes of memory that the process has now."""
    return int(psutil.Process().memory_info().rss)


def allowed_memory() -> int:
    """Bytes that the process may have in all: what is free, and what limits leave to it."""
    info = psutil.Process().memory_info()
    most = [info.rss + psutil.virtual_memory().available, *_cgroup_limits()]
    if sys.platform != "win32":
        import resource

        for limit, counted in (("RLIMIT_AS", "vms"), ("RLIMIT_DATA", "data")):
            soft = resource.getrlimit(getattr(resource, limit))[0]
            if soft != resource.RLIM_INFINITY and hasattr(info, counted):
                # Of what it counts, not all is in memory.
                most.append(max(0, soft - getattr(info, counted)) + info.rss)
    return int(min(most))


def device_memory(device: torch.device) -> int | None:
    """Free bytes of a GPU; None for a device that has no memory of its own, or does not tell."""
    return int(torch.cuda.mem_get_info(device)[0]) if device.type == "cuda" else None


def _cgroup_limits() -> list[int]:
    """Limits of the control groups that the process is in, and of those around them."""
    try:
        lines = Path("/proc/self/cgroup").read_text(encoding="utf-8").splitlines()
    except OSError:
        return []
    found = []
    for line in lines:
        _, kinds, path = line.split(":", 2)
        if kinds not in ("", "memory"):
            continue
        folder, name = (
            (_CGROUPS / "memory", "memory.limit_in_bytes") if kinds else (_CGROUPS, "memory.max")
        )
        inner = folder / path.lstrip("/")
        for place in (inner, *inner.parents):
            if place == folder.parent:
                break
            try:
                text = (place / name).read_text(encoding="ascii").strip()
            except OSError:
                continue
            if text.isdecimal():  # "max": there is none
                found.append(int(text))
    return found


class Peak:
    """The most memory that the process had since :meth:`start`, looked at every millisecond."""

    def __init__(self) -> None:
        self._process = psutil.Process()
        self._most = 0
        self._from = 0
        self._end: threading.Event | None = None
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        """Begin to look."""
        self._from = self._most = int(self._process.memory_info().rss)
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._look, args=(self._end,), daemon=True)
        self._thread.start()

    def stop(self) -> int:
        """End it; bytes above those of the start."""
        assert self._end is not None and self._thread is not None
        self._end.set()
        self._thread.join()
        self._see()
        return self._most - self._from

    def _look(self, end: threading.Event) -> None:
        while not end.is_set():
            self._see()
            time.sleep(0.001)

    def _see(self) -> None:
        self._most = max(self._most, int(self._process.memory_info().rss))
