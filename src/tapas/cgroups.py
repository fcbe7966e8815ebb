"""The control groups (cgroups of Linux) that limit this process: processor time and memory."""

import math
from collections.abc import Iterator
from pathlib import Path

ROOT = Path("/")


def groups_with(controller: str, root: Path = ROOT) -> Iterator[tuple[Path, bool]]:
    """Folders of the groups of this process, innermost first, and whether they are of version 1.

    Version 2 has one folder for all controllers, version 1 one for each, which a container may see
    as the root. A folder need not exist.
    """
    listed = root / "proc/self/cgroup"
    for line in listed.read_text().splitlines() if listed.exists() else ():
        _, kinds, path = line.split(":", 2)
        if kinds and controller not in kinds.split(","):
            continue
        top = root / "sys/fs/cgroup" / (controller if kinds else "")
        inside = top / path.strip("/")
        for folder in (inside, *inside.parents):
            yield folder, kinds != ""
            if folder == top:
                break


def cpu_quota(root: Path = ROOT) -> float:
    """Cores' worth of time that the tightest group grants; infinite without a limit."""
    found = math.inf
    for folder, is_first in groups_with("cpu", root):
        names = ("cpu.cfs_quota_us", "cpu.cfs_period_us") if is_first else ("cpu.max",)
        try:
            words = " ".join((folder / name).read_text() for name in names).split()
        except OSError:  # no such controller, or not visible here
            continue
        if len(words) == 2 and all(word.isdigit() for word in words) and int(words[1]) > 0:
            found = min(found, int(words[0]) / int(words[1]))  # else "max", or -1
    return found
