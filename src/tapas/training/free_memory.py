"""The memory that a process may still take, on its host and in its control groups."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from tapas.shapes import check_positive


def available_memory(ranks_per_host: int | None = None, *, root: Path = Path("/")) -> int:
    """Bytes that this process may still take: what the host and its control groups have free.

    Ranks of one host share it evenly: `ranks_per_host`, left out, is what torchrun says.
    """
    if ranks_per_host is None:
        ranks_per_host = int(os.environ.get("LOCAL_WORLD_SIZE", "1"))
    check_positive("ranks_per_host", ranks_per_host)
    return max(0, min((_free_on_host(root), *_free_in_groups(root)))) // ranks_per_host


def _free_on_host(root: Path) -> int:
    found = _numbers(root / "proc/meminfo").get("MemAvailable:")
    if found is not None:
        return 1024 * found
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # not Linux: all there is


def _free_in_groups(root: Path) -> Iterator[int]:
    """For each control group with a limit that this process is in, and for those above it."""
    listed = root / "proc/self/cgroup"
    for line in listed.read_text().splitlines() if listed.exists() else ():
        _, kinds, path = line.split(":", 2)
        if kinds == "":
            base, names = "", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in kinds.split(","):
            base = "memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        top = root / "sys/fs/cgroup" / base
        inside = top / path.strip("/")
        for folder in (inside, *inside.parents):
            limit, used = (_numbers(folder / name).get("") for name in names[:2])
            if limit is not None and used is not None:  # else "max", or a group not shown here
                # pages of files that nobody has used lately are given up first
                yield limit - used + _numbers(folder / "memory.stat").get(names[2], 0)
            if folder == top:
                break


def _numbers(file: Path) -> dict[str, int]:
    """The number of each line by the word before it; nothing of a file that cannot be read."""
    try:
        found = re.findall(r"^(?:(\S+)\s+)?(\d+)\b", file.read_text(), flags=re.MULTILINE)
    except OSError:
        return {}
    return {name: int(number) for name, number in found}
