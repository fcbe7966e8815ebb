"""Whatever fails, and wherever a process dies: the old state or the new one, complete.

Every operation that changes the disk fails once, and is the last of its process once. What is
renamed is on disk before, and its new name afterwards.
"""

import re

import crash_programs
import pytest
from forked import Forked

QUICK = {"begin a journal"}


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[] if name in QUICK else pytest.mark.slow)
        for name in crash_programs.PROGRAMS
    ],
)
def test_no_state_is_lost_and_no_litter_left(name, tmp_path):
    done = Forked(name, str(tmp_path), work=crash_programs.run).end()
    assert done.returncode == 0, done.stderr
    fails, dies = map(int, re.findall(r"\w+ at (\d+) places", done.stdout))
    assert fails >= dies > 3


@pytest.mark.slow
@pytest.mark.parametrize("name", crash_programs.RACES)
def test_of_several_processes_one_leaves_its_result_and_the_others_are_told(name, tmp_path):
    done = Forked(name, str(tmp_path), work=crash_programs.run_race).end()
    assert done.returncode == 0, done.stderr
