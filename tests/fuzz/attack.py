"""Attack the command: damaged and hostile runs, logs and settings, each in its own process.

    PYTHONPATH=tests:. python -m fuzz.attack --runs 500 --logs 300 --settings 200

prints a table: how many commands ended with a result or with one sentence, and how many with a
traceback, not in time, or with another result than the undamaged run's and not a word. Half of
the logs and settings are hostile, half are valid but odd: such a log must be read as the events
that were written, and no model may have NaN or tables "nan". Weights that are NaN must be refused,
and settings that no run can have. The same seed makes the same cases; `--only "run 17"` repeats
one and keeps its files.
"""

import argparse
import gzip
import hashlib
import io
import json
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from forked import Forked
from fuzz.mutations import HOSTILE, changed_header, changed_json, damaged, json_text
from fuzz.odd_logs import events_of, odd_log
from fuzz.odd_settings import impossible_setting, odd_settings
from fuzz.readers import seal
from oracle.command_line import ENVIRONMENT, TINY, chain
from ranks import CONTEXT, PRELOAD
from safetensors.numpy import load, load_file, save

from tapas.data.event_log import EventLog

SECONDS = 90  # until a command hangs; the machine may be busy
OUTCOMES = ("result", "one sentence", "traceback", "hang", "silent change", "wrong refusal")
NO_NUMBER = re.compile(r"\b(nan|inf|infinity)\b", re.IGNORECASE)
ITEM, USER = 1003, "u1"
OPENS_LOG = ("recommend", "evaluate", "similar", "export", "train")  # and must see its damage
ROWS = "rows-0.safetensors"
USES_ALL_WEIGHTS = ("recommend", "similar", "export")
NOT_FINITE = "weights are NaN or inf"
STATES = ("_sum", "_mean", "_square", "exp_avg_sq")  # of optimizers, inf once a loss is huge


class Case(NamedTuple):
    """A command, and what was done to its files."""

    words: list[Any]
    done: str
    sealed: bool = True  # by checksums made anew: any result is right
    out: str = ""  # the folder whose files are the result, instead of stdout


def commands(run: Path) -> list[Case]:
    return [
        Case(["recommend", run, "--history", ITEM, "--top", 5], ""),
        Case(["recommend", run, "--user", USER], ""),
        Case(["evaluate", run], ""),
        Case(["similar", run, "--item", ITEM], ""),
        Case(["export", run, "--to", run.parent / "export"], "", out="export"),
        Case(["train", "--resume", run, "--step", 2], "", out="run/checkpoints/step-00000004"),
        Case(["checkpoint", "info", run], ""),
        Case(["verify", run], ""),
        Case(["cite", run], ""),
    ]


def start(words: list[Any], folder: Path, seconds: float = SECONDS) -> Any:
    """The ended command; None if it hangs."""
    try:
        return Forked(*words, cwd=folder, env=ENVIRONMENT).end(seconds)
    except AssertionError:
        return None


def ending(done: subprocess.CompletedProcess[str] | None) -> str:
    if done is None:
        return "hang"
    if (
        "Traceback (" in done.stderr
        or "panicked" in done.stderr
        or done.returncode not in (0, 1, 2)
    ):
        return "traceback"
    if done.returncode == 0:
        return "result"
    last = (done.stderr.strip().splitlines() or [""])[-1]
    is_verdict = done.returncode == 1 and "damaged" in done.stdout  # of verify
    is_told = last.startswith("tapas: ") or done.returncode == 2 or is_verdict
    return "one sentence" if is_told else "traceback"


def result(case: Case, done: Any, folder: Path) -> str:
    """What the command has made, to be compared; the text of README.txt has dates."""
    if not case.out:
        return str(done.stdout)
    files = sorted(file for file in (folder / case.out).rglob("*.safetensors"))
    return " ".join(hashlib.blake2b(file.read_bytes()).hexdigest() for file in files)


class RunAttack:
    """Damage to the files of a finished run."""

    def __init__(self, home: Path):
        self.home, self.base = home / "run-attack", home / "base"
        write_log(home / "log.csv")
        words = ["train", home / "log.csv", "--out", self.base, "--cache", home / "cache", *TINY]
        done = start([*words, "--set", "loop.keep=2"], home)
        assert done.returncode == 0, done.stderr
        shutil.rmtree(self.base / "tensorboard")
        self.expected = {}
        for number, case in enumerate(commands(self.fresh())):
            self.fresh()
            done = start(case.words, home)
            assert done is not None, case
            assert done.returncode == 0, (case, done.stderr)
            self.expected[number] = result(case, done, self.home)

    def fresh(self) -> Path:
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        return Path(shutil.copytree(self.base, self.home / "run"))

    def differs(self, name: str) -> bool:
        """Whether a file of the run is no longer what it was."""
        file = self.home / "run" / name
        if file.is_symlink() or not file.is_file():
            return True
        return file.read_bytes() != (self.base / name).read_bytes()

    def attack(self, draw: random.Random) -> tuple[Case, str, Any]:
        run = self.fresh()
        number = draw.randrange(len(self.expected))
        what, sealed, name = harm(draw, run)
        case = commands(run)[number]._replace(done=what, sealed=sealed)
        done = start(case.words, self.home)
        found = ending(done)
        if found == "result" and not sealed:
            same = result(case, done, self.home) == self.expected[number]
            is_told = name.split("/")[-1] in done.stderr or "not checked" in done.stdout
            unseen = case.words[0] in OPENS_LOG and name.startswith("log/") and self.differs(name)
            if (not same or unseen) and not is_told:
                found = "silent change"
        if found == "result" and NO_NUMBER.search(done.stdout):
            found = "silent change"
        if found == "result" and what == NOT_FINITE and case.words[0] in USES_ALL_WEIGHTS:
            found = "silent change"
        return case, found, done


def harm(draw: random.Random, run: Path) -> tuple[str, bool, str]:
    """Harm one file; returns what was done, whether checksums are right, and its name."""
    files = sorted(file for file in run.rglob("*") if file.is_file())
    file = draw.choice(files)
    kind = draw.randrange(11)
    if kind == 9 or (kind == 5 and draw.random() < 0.7):  # what every command opens
        file = draw.choice([each for each in files if each.suffix in (".json", ".toml")])
    name, content = str(file.relative_to(run)), file.read_bytes()
    if kind == 10:
        return draw.choice([leads_outside, not_finite])(draw, run)
    if kind == 3:
        file.write_bytes(content + draw.choice([bytes(4096), b"\n", b"x", content]))
        return f"more at the end of {name}", False, name
    if kind < 3:
        file.write_bytes(damaged(draw, content))
        return f"accident in {name}", False, name
    if kind == 4:
        file.unlink()
        return f"{name} removed", False, name
    if kind == 5:
        file.unlink()
        made = draw.choice(["link", "pipe", "pipe", "folder", "device", "broken link"])
        if made == "pipe":
            os.mkfifo(file)
        elif made == "folder":
            file.mkdir()
        else:
            targets = {"link": run.parent / "aside", "device": "/dev/zero", "broken link": "gone"}
            (run.parent / "aside").write_bytes(content)
            file.symlink_to(targets[made])
        return f"{name} is a {made}", False, name
    if kind == 6:
        other = draw.choice(files)
        file.write_bytes(other.read_bytes())
        return f"{name} is a copy of {other.relative_to(run)}", False, name
    file.write_bytes(hostile(draw, name, content))
    seal(run, {name})
    return f"{name} is hostile", True, name


def leads_outside(draw: random.Random, run: Path) -> tuple[str, bool, str]:
    """A checkpoint whose rows lie outside of its folder, with right checksums; they differ."""
    steps = sorted((run / "checkpoints").iterdir())
    rows, outside = [step / ROWS for step in steps], run.parent / "outside"
    outside.mkdir()
    for file, other in zip(rows, reversed(rows), strict=True):
        shutil.copy(other, outside / file.parent.name)
    for file in rows:
        state, away = file.with_name("state.json"), f"outside/{file.parent.name}"
        place = draw.choice([f"../../../{away}", str(run.parent / away)])
        state.write_text(state.read_text().replace(ROWS, place))
        file.unlink()
    seal(run, set())
    return "rows lie outside", False, "outside"


def not_finite(draw: random.Random, run: Path) -> tuple[str, bool, str]:
    """Checkpoints with NaN or inf in one of the model's tensors, with right checksums."""
    file_name = draw.choice([ROWS, "dense.safetensors"])
    for file in sorted(run.glob(f"checkpoints/*/{file_name}")):
        file.write_bytes(with_nan(draw, file.read_bytes(), only_weights=True))
    seal(run, set())
    return NOT_FINITE, True, file_name


def hostile(draw: random.Random, name: str, content: bytes) -> bytes:
    """Content of a stranger, as well-formed as its kind of file allows."""
    if name.endswith(".json"):
        return json_text(draw, changed_json(draw, json.loads(content)))
    if name.endswith(".jsonl"):
        lines = [changed_json(draw, json.loads(line)) for line in content.splitlines()]
        return b"".join(json_text(draw, line) + b"\n" for line in lines)
    if name.endswith(".safetensors"):
        return draw.choice([changed_header, with_nan])(draw, content)
    if name.endswith(".npy"):
        array = np.load(io.BytesIO(content))
        array[draw.randrange(len(array))] = draw.choice([-1, 2**30, 0, 1])
        np.save(file := io.BytesIO(), array[: draw.choice([None, None, 1, 0])])
        return file.getvalue()
    if name.endswith(".toml"):
        return hostile_toml(draw, content)
    return damaged(draw, content)


def with_nan(draw: random.Random, content: bytes, *, only_weights: bool = False) -> bytes:
    """A safetensors file in which a number of one array is not finite."""
    arrays = {name: array.copy() for name, array in load(content).items()}
    floats = sorted(name for name in arrays if arrays[name].dtype.kind == "f")
    weights = [n for n in floats if n.startswith("model.") and not n.endswith(STATES)]
    chosen = draw.choice(weights if only_weights else floats)
    arrays[chosen].flat[draw.randrange(arrays[chosen].size)] = draw.choice([np.nan, np.inf])
    return save(arrays)


def hostile_toml(draw: random.Random, content: bytes) -> bytes:
    lines = content.decode().splitlines()
    for _ in range(draw.randint(1, 3)):
        at = draw.randrange(len(lines))
        name, equals, _ = lines[at].partition("=")
        value = draw.choice([json.dumps(draw.choice(HOSTILE)), "9" * 5000, "nan", "[" * 3000, "{}"])
        lines[at] = f"{name}= {value}" if equals else draw.choice(["", "[x]", "[[head]]", "= 1"])
    return "\n".join(lines).encode()


def write_log(file: Path) -> None:
    chain(num_users=11, num_items=23).write_csv(file)


class LogAttack:
    """Logs that are not what their name says, or almost."""

    def __init__(self, home: Path):
        self.home = home / "log-attack"
        frame = chain(num_users=11, num_items=23)
        csv, parquet = io.BytesIO(), io.BytesIO()
        frame.write_csv(csv)
        frame.write_parquet(parquet)
        lines = "".join(f"{json.dumps(row)}\n" for row in frame.to_dicts()).encode()
        self.rows = frame.to_dicts()
        self.good = {
            "log.csv": csv.getvalue(), "log.parquet": parquet.getvalue(), "log.jsonl": lines,
            "log.tsv": csv.getvalue().replace(b",", b"\t"),
            "log.csv.gz": gzip.compress(csv.getvalue(), mtime=0),
        }  # fmt: skip

    def attack(self, draw: random.Random) -> tuple[Case, str, Any]:
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        return self.odd(draw) if draw.random() < 0.5 else self.hostile(draw)

    def odd(self, draw: random.Random) -> tuple[Case, str, Any]:
        """A valid log: its events must be read, or it must be refused, as its maker says."""
        odd, cache = odd_log(draw), self.home / "cache"
        for name, content in odd.files.items():
            (self.home / name).write_bytes(content)
        words = ["inspect", *odd.files, *odd.words]
        if is_train := draw.random() < 0.3:
            words = ["train", *words[1:], "--out", "run", "--split", "last", *TINY]
        done = start([*words, "--cache", cache], self.home)
        found = ending(done)
        prepared = [file.parent for file in cache.glob("*/log.json")]
        if found in ("result", "one sentence") and prepared:
            read = events_of(EventLog.open(prepared[0]))
            found = found if read == odd.events else "silent change"
        elif found == "one sentence" and odd.events is not None:
            found = "wrong refusal"
        if found == "result" and is_train and is_nonsense(done, self.home / "run"):
            found = "silent change"
        return Case(words, odd.what), found, done

    def hostile(self, draw: random.Random) -> tuple[Case, str, Any]:
        name = draw.choice(sorted(self.good))
        kind = draw.randrange(4)
        content = self.good[name]
        if kind == 0:
            content = self.good[draw.choice(sorted(self.good))]
        elif kind == 1 and name.endswith("jsonl"):
            rows = changed_json(draw, self.rows)
            rows = rows if isinstance(rows, list) else [rows]
            content = b"".join(json_text(draw, row) + b"\n" for row in rows)
        elif kind == 1 and name.endswith("csv"):
            column = draw.choice([0, 1, 2])
            cells = [line.split(",") for line in content.decode().splitlines()]
            for row in draw.sample(cells, draw.randint(1, len(cells))):
                row[column] = str(draw.choice(HOSTILE))
            content = "\n".join(",".join(row) for row in cells).encode()
        file, is_good = self.home / name, content == self.good[name]
        if kind == 0 and is_good:
            no_file(draw, file)
        else:
            file.write_bytes(damaged(draw, content) if is_good else content)
        words: list[Any] = ["inspect", file]
        if draw.random() < 0.5:
            words = ["train", file, "--out", self.home / "run", *TINY]
        words += draw.choice([[], ["--skip-bad-rows"]])
        done = start([*words, "--cache", self.home / "cache"], self.home)
        return Case(words, f"kind {kind}"), ending(done), done


def no_file(draw: random.Random, path: Path) -> None:
    """A pipe, a folder, or a link to a device or to itself."""
    made = draw.choice(["pipe", "pipe", "folder", "link"])
    if made == "pipe":
        os.mkfifo(path)
    elif made == "folder":
        path.mkdir()
    else:
        path.symlink_to(draw.choice(["/dev/zero", path.name]))


def is_nonsense(done: Any, run: Path) -> bool:
    """Whether a trained model has NaN, or a command has printed it."""
    if NO_NUMBER.search(done.stdout + done.stderr):
        return True
    files = run.glob("checkpoints/*/*.safetensors")
    weights = [a for file in files for n, a in load_file(file).items() if not n.endswith(STATES)]
    return not all(np.isfinite(array).all() for array in weights if array.dtype.kind == "f")


class SettingAttack:
    """Settings that are absurd, or valid but odd."""

    def __init__(self, home: Path):
        self.home, self.log = home / "setting-attack", home / "more-users.csv"
        chain(num_users=40, num_items=23).write_csv(self.log)
        self.config = (home / "base" / "config.toml").read_bytes()
        self.names, section = [], ""
        for line in self.config.decode().splitlines():
            if line.startswith("["):
                section = line.strip("[]")
            elif "=" in line and section and section != "log":
                self.names.append(f"{section}.{line.partition('=')[0].strip()}")

    def attack(self, draw: random.Random) -> tuple[Case, str, Any]:
        shutil.rmtree(self.home, ignore_errors=True)
        self.home.mkdir()
        words: list[Any] = ["train", self.log, "--out", self.home / "run"]
        words += ["--cache", self.home / "cache", "--threads", 1]
        if draw.random() < 0.5:
            return self.odd(draw, words)
        share = draw.random()
        if share > 0.8:
            return self.impossible(draw, words)
        if share < 0.3:
            (self.home / "some.toml").write_bytes(hostile_toml(draw, self.config))
            words += ["--config", self.home / "some.toml", "--steps", 2]
        else:
            values = [*map(str, HOSTILE), *map(json.dumps, HOSTILE), "9" * 40, "1e9", "1e-300", "1"]
            chosen = [(draw.choice(self.names), draw.choice(values)) for _ in range(3)]
            chosen = chosen[: draw.randint(1, 3)]
            chosen = [(name, value.replace("\0", "")) for name, value in chosen]
            fixed = {"loop.steps": "2", "loop.batch": "4", "model.dim": "4"}
            chosen += [(n, v) for n, v in fixed.items() if n not in dict(chosen)]
            words += [word for name, value in chosen for word in ("--set", f"{name}={value}")]
        done = start(words, self.home)
        return Case(words, "settings"), ending(done), done

    def impossible(self, draw: random.Random, words: list[Any]) -> tuple[Case, str, Any]:
        """A setting that no run can have: the sentence must name it."""
        name, value = impossible_setting(draw)
        small = {"loop.steps": 2, "loop.batch": 4, "model.dim": 4, name: value}
        words += [word for each in small.items() for word in ("--set", "{}={}".format(*each))]
        done = start(words, self.home)
        found = ending(done)
        field = name.partition(".")[2]
        if found == "result" or (found == "one sentence" and field not in done.stderr):
            found = "silent change"
        return Case(words, f"{name} = {value}"), found, done

    def odd(self, draw: random.Random, words: list[Any]) -> tuple[Case, str, Any]:
        """Train a model with valid settings, and use it."""
        for name, value in odd_settings(draw).items():
            words += ["--set", f"{name}={value}"]
        done, run = start(words, self.home), self.home / "run"
        found = ending(done)
        if found == "result" and is_nonsense(done, run):
            return Case(words, "odd settings"), "silent change", done
        if found != "result":
            return Case(words, "odd settings"), found, done
        uses = (
            ["evaluate", run], ["evaluate", run, "--on", "validation"], ["verify", run],
            ["recommend", run, "--user", USER, "--top", 5], ["train", "--resume", run],
            ["recommend", run, "--history", ITEM, "--top", 23], ["similar", run, "--item", ITEM],
        )  # fmt: skip
        then = draw.choice(uses)
        done = start(then, self.home)
        found = ending(done)
        if found == "result" and is_nonsense(done, run):
            found = "silent change"
        return Case([*words, "; tapas", *then], "odd settings"), found, done


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    for name, number in (("runs", 500), ("logs", 300), ("settings", 200), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=number)
    parser.add_argument("--only", help='such as "run 17"')
    parser.add_argument("--minutes", type=float, default=60, help="stop after so many")
    options = parser.parse_args()
    end = time.monotonic() + 60 * options.minutes
    CONTEXT.set_forkserver_preload([*PRELOAD, "oracle.command_line"])  # imported only once
    os.nice(10)
    home = Path(tempfile.mkdtemp(prefix="attack-"))
    attacks = {
        "run": (RunAttack(home), options.runs),
        "log": (LogAttack(home), options.logs),
        "setting": (SettingAttack(home), options.settings),
    }
    if options.only:
        kind, number = options.only.split()
        case, found, done = attacks[kind][0].attack(random.Random(f"{options.seed} {options.only}"))
        print(case, found, done, f"Files: {home}", sep="\n")
        return
    cases = [(kind, place) for kind, (_, number) in attacks.items() for place in range(number)]
    cases.sort(key=lambda case: case[1] / attacks[case[0]][1])  # all kinds in turn
    counts = {kind: Counter[str]() for kind in attacks}
    for kind, place in cases:
        if time.monotonic() > end:
            break
        draw = random.Random(f"{options.seed} {kind} {place}")
        case, found, done = attacks[kind][0].attack(draw)
        counts[kind][found] += 1
        if found in OUTCOMES[2:]:
            last = (done.stderr.strip().splitlines() or [""])[-1][:300] if done else ""
            words = " ".join(map(str, case.words))[:300]
            print(f"{found}: --only '{kind} {place}': {case.done}: {words}: {last}",
                  file=sys.stderr, flush=True)  # fmt: skip
    print("| attack | number | " + " | ".join(OUTCOMES) + " |\n|---|" + "--:|" * 7)
    for kind, found in counts.items():
        cells = [str(found[name]) for name in OUTCOMES]
        print(f"| {kind}s | {found.total()} | {' | '.join(cells)} |")
    bad = sum(found[name] for found in counts.values() for name in OUTCOMES[2:])
    shutil.rmtree(home)
    raise SystemExit(bad > 0)


if __name__ == "__main__":
    main()
