"""The report of a run: what is on the page, whatever the run went through or is called."""

import json
import math
import os
import re
import shutil
from dataclasses import replace
from html.parser import HTMLParser

import polars as pl
import pytest
import torch
from oracle.command_line import chain, write_chain

from tapas import UsageError
from tapas.data.source import LogSource
from tapas.data.splits import SplitConfig
from tapas.training import report
from tapas.training import run as session
from tapas.training.config import HeadConfig, LoopConfig, ModelConfig, ServiceConfig, TrainConfig
from tapas.training.journal import Journal
from tapas.training.report import report_page, try_to_report
from tapas.training.run_evaluation import evaluate_runs
from tapas.training.run_folder import open_run
from tapas.training.whole_log import train_whole_log

SECTIONS = [
    "How good it is",
    "Which part of the model proposed what",
    "Training",
    "Were there enough samples?",
    "What was chosen from the log, and why",
    "The log",
    "Next",
]
GIVEN = {"model.dim", "model.encoder", "head.method", "loop.steps", "loop.batch", "model.history"}
HOSTILE = "<script>alert('🎉')</script> \"שלום\" & co"
FILE = "log <b>bold & שלום.parquet"


class Page(HTMLParser):
    """Headings, tags, rows of tables and the text of a page, which may load nothing."""

    def __init__(self, page):
        super().__init__()
        self.open, self.tags, self.found = [], set(), {}
        self.feed(page)
        self.text = " ".join(" ".join(words) for words in self.found.values())
        assert self.tags.isdisjoint({"script", "link", "iframe", "object", "img", "base", "a"})
        assert not re.search(r"https?:|//|@import|url\(", page.replace("</", "<"))

    def handle_starttag(self, tag, attrs):
        self.tags.add(tag)
        self.open.append(tag)
        assert {name for name, _ in attrs}.isdisjoint({"src", "href", "onload", "onclick"})

    def handle_endtag(self, tag):
        assert tag in self.open
        while self.open.pop() != tag:
            pass

    def handle_data(self, data):
        tag = self.open[-1] if self.open else ""
        self.found.setdefault("cell" if tag in ("td", "th") else tag, []).append(data)

    @property
    def sections(self):
        return self.found.get("h2", [])

    @property
    def marks(self):
        """The steps marked as best in charts."""
        return [word for word in self.found.get("text", []) if word.startswith("best: ")]


def configured(file, **log):
    return TrainConfig(
        log=LogSource(files=(str(file),), **log),
        model=ModelConfig(dim=4, history=8, encoder="mean", copy=True, follow=True),
        head=HeadConfig.of(num_samples=6, presample_factor=2),
        loop=LoopConfig(steps=6, evaluate_every=2, batch=8, patience=99, keep=9),
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return tmp_path_factory.mktemp("report")


@pytest.fixture(scope="module")
def run(folder):
    """Items repeat, so that the run has all parts."""
    frame = chain(num_users=30, num_items=25, num_baskets=9, seed=1)
    frame = frame.with_columns(pl.col("item_id") % 7 + pl.col("item_id") // 13)
    frame.write_parquet(folder / "chain.parquet")
    config = configured(folder / "chain.parquet")
    session.train(config, folder / "run", cache=folder / "cache", given=GIVEN)
    return open_run(folder / "run")


@pytest.fixture
def copied(run, tmp_path):
    """A copy of the run, which a test may change."""
    shutil.copytree(run.path, tmp_path / "run")
    return open_run(tmp_path / "run")


def judged(run, split="validation", **options):
    return evaluate_runs([run], split=split, inspect=True, **options)


def test_every_section_is_on_the_page_with_the_numbers_of_the_evaluation(run):
    found = judged(run)
    page = Page(report_page(run, found))
    assert page.sections == SECTIONS
    scores = found.evaluation.scores
    for name in ("model", "most popular", "own most frequent", "co-occurrence"):
        for metric in ("map@20", "ndcg@10", "recall@5", "mrr@20"):
            assert scores[name].metrics[metric].plus_minus() in page.text
        assert f"{scores[name].metrics['map@20'].mean:.4f}" in page.found["text"]
    assert scores["model"].buckets["head"].recall.format() in page.text
    assert all(words in page.text for words in found.verdict())
    assert found.facts.gradients[1:] in page.text
    assert "which the checkpoint was chosen by" in page.text
    steps = [json.loads(line) for line in (run.path / "journal.jsonl").read_text().splitlines()]
    best = max((e for e in steps if e["event"] == "evaluate"), key=lambda e: e["map@20"])["step"]
    assert page.marks == [f"best: step {best}"] * 2
    assert "The log" in page.sections
    assert "chain.parquet" in page.text
    assert str(run.path.parent) not in page.text.replace(f"tapas evaluate {run.path}", "")[:2_000]
    rows = page.found["cell"]
    for name in ("method", "time", "training events", "memory", "events", "users", "items"):
        assert name in rows
    assert "6 of at most 6, 8 histories each" in rows
    for setting, value in (("model.copy", "true"), ("model.follow", "true")):
        assert rows[rows.index(setting) + 1] == value
    commands = page.found["pre"]
    assert commands[0] == f"$ tapas evaluate {run.path}"
    assert commands[-1] == f"$ tapas train --like {run.path} --out {run.path}-whole"


def test_parts_and_shares_are_those_of_the_lists(run):
    facts = judged(run).facts
    assert set(facts.listed) == {"softmax", "copy", "follow"}
    assert sum(facts.listed.values()) == pytest.approx(1)
    assert sum(facts.hits.values()) == pytest.approx(1)
    page = Page(report_page(run, judged(run)))
    for name, share in facts.listed.items():
        words = (
            f"{name}: {100 * share:.0f} % of listed items, {100 * facts.hits[name]:.0f} % of hits"
        )
        assert words in page.found["text"]


def test_test_users_and_another_run_beside_it(run, copied):
    found = evaluate_runs([run, copied], inspect=True)
    page = Page(report_page(run, found))
    assert "Judged by events that no training has seen" in page.text
    assert str(copied.path) in page.found["cell"]
    assert str(run.path) in page.found["cell"]
    assert not any(command.startswith("$ tapas evaluate") for command in page.found["pre"])


def test_few_users_have_no_intervals(run):
    page = Page(report_page(run, judged(run, limit=2)))
    assert "2 users are too few to say who is better: at least 10 are needed." in page.text
    assert "±" not in page.text
    assert "95 %" not in page.text


def test_a_run_that_is_not_judged_yet_says_how(run):
    page = Page(report_page(run))
    assert page.sections == [name for name in SECTIONS if name not in (SECTIONS[1], SECTIONS[3])]
    assert "Not known yet: tapas evaluate adds it to this page." in page.text


def test_a_run_on_the_whole_log_is_not_judged(run, tmp_path):
    train_whole_log(run, tmp_path / "whole")
    said = []
    try_to_report(tmp_path / "whole", said.append, judge=True)
    assert said == [f"Report: {tmp_path / 'whole' / 'report.html'}"]
    page = Page((tmp_path / "whole" / "report.html").read_text())
    assert page.sections == ["How good it is", "Training", "The log", "Next"]
    assert "It has learned from all events" in page.text
    assert page.marks == []
    assert "Nothing is held out; training: " in page.text
    assert "time" in page.found["cell"]
    assert not any(word in page.text for word in ("tapas evaluate", "--like", "NaN", "nan"))


def test_an_interrupted_and_resumed_run_adds_up_its_times(run, tmp_path):
    stops = iter([False, False, True])
    config = run.config
    session.train(config, tmp_path / "run", cache=run.path.parent / "cache",
                  should_stop=lambda: next(stops))  # fmt: skip
    half = Page(report_page(open_run(tmp_path / "run")))
    assert "3 of at most 6, 8 histories each" in half.found["cell"]
    session.resume(tmp_path / "run")
    page = Page(report_page(open_run(tmp_path / "run")))
    assert "6 of at most 6, 8 histories each" in page.found["cell"]
    assert "a process was killed" not in page.text
    assert page.found["cell"].count("time") == 2


def test_the_time_of_a_killed_process_is_not_known(copied):
    lines = [json.loads(line) for line in (copied.path / "journal.jsonl").read_text().splitlines()]
    (end,) = (line for line in lines if line["event"] == "end")
    (copied.path / "journal.jsonl").unlink()
    with Journal(copied.path, tensorboard=False) as journal:
        journal.write(4, "evaluate", **{"train_loss": 1.0, "map@20": 0.1, "loss": 2.0})
        journal.write(6, "end", reason="finished", steps=2, seconds=3.0, peak_bytes=None)
    page = Page(report_page(copied))
    assert "3 s, evaluations included, for 2 of the steps: a process was killed" in page.text
    assert "memory" not in page.found["cell"]
    assert end["steps"] == 6


def test_an_old_journal_and_none_at_all(copied):
    path = copied.path / "journal.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    evaluations = [line for line in lines if line["event"] == "evaluate"]
    for line in evaluations:
        line.pop("blake2b", None)
    path.write_text("".join(json.dumps(line) + "\n" for line in evaluations))
    page = Page(report_page(copied, judged(copied)))
    assert page.sections == [name for name in SECTIONS if not name.startswith("What was chosen")]
    assert "training events" not in page.found["cell"]
    path.unlink()
    page = Page(report_page(copied, judged(copied)))
    assert "Training" in page.sections
    assert page.marks == []


def test_losses_that_are_no_numbers_leave_gaps(copied):
    (copied.path / "journal.jsonl").unlink()
    with Journal(copied.path, tensorboard=False) as journal:
        for step, loss in ((2, 3.0), (4, 1e30), (6, math.nan), (8, math.inf)):
            found = {"train_loss": loss, "map@20": 0.1 / step, "ndcg@20": loss, "loss": math.nan}
            journal.write(step, "evaluate", **found)
    text = report_page(copied)
    page = Page(text)
    assert page.marks == ["best: step 2"] * 2
    assert not re.search(r"\bnan\b|\binf\b", text)
    with Journal(copied.path, tensorboard=False) as journal:
        journal.write(10, "evaluate", **{"train_loss": math.nan, "map@20": math.nan})
    Page(report_page(copied))


def test_settings_that_were_changed_later_are_not_told_as_chosen(copied):
    with Journal(copied.path, tensorboard=False) as journal:
        journal.write(0, "setting", name="model.dim", value="77", reason="no longer so")
        journal.write(0, "setting", name="no.such", value="1", reason="never")
        journal.write(0, "setting", name="loop.batch", value="8", reason="the best of 4 candidates")
    page = Page(report_page(copied))
    assert "the best of 4 candidates" in page.text
    assert "no longer so" not in page.text
    assert "never" not in page.text


def test_names_are_text_and_nothing_else(tmp_path):
    frame = chain(num_users=30, num_items=25, num_baskets=9)
    columns = {"user_id": f"user {HOSTILE}", "item_id": f"item {HOSTILE}"}
    frame.with_columns(pl.format("{} {}", pl.lit(HOSTILE), "user_id").alias("user_id")).rename(
        columns
    ).write_parquet(tmp_path / FILE)
    config = configured(
        tmp_path / FILE, user=columns["user_id"], item=columns["item_id"], time="time"
    )
    folder = tmp_path / f"run {HOSTILE}".replace("/", "-")
    session.train(config, folder, cache=tmp_path / "cache", given=GIVEN)
    run = open_run(folder)
    text = report_page(run, judged(run))
    page = Page(text)
    assert "alert" in page.text
    assert page.found["h1"] == [f"Run {folder.name}"]
    assert page.found["title"][0] == f"Run {folder.name}"
    assert f"trained on {FILE}." in page.text
    assert "Columns: " in page.text
    assert text.count("<script") == 0


def test_servers_have_more_memory_than_is_known(run):
    served = replace(run, config=replace(run.config, service=ServiceConfig(servers=2)))
    assert "in the main process, without workers and servers" in report_page(served)
    assert "in the main process" not in report_page(run)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (
            PermissionError(13, "Permission denied"),
            "cannot write {path}: Permission denied. Free some space or choose another place; "
            "nothing unfinished was left behind.",
        ),
        (UsageError("a sentence."), "a sentence."),
        (MemoryError(), "MemoryError: "),
        (KeyError("map@20"), "KeyError: 'map@20'"),
        (torch.OutOfMemoryError("too much"), "OutOfMemoryError: too much"),
    ],
    ids=str,
)
def test_a_report_that_cannot_be_written_is_a_warning(copied, monkeypatch, error, words):
    def fail(*args):
        raise error

    monkeypatch.setattr(report, "report_page", fail)
    said = []
    try_to_report(copied.path, said.append, judge=False)
    words = words.format(path=copied.path / "report.html")
    assert said == [f"Warning: the report was not written: {words}"]
    assert [path.name for path in copied.path.iterdir() if "report" in path.name] == []


def test_a_report_stays_until_more_is_learned(copied):
    file, said = copied.path / "report.html", []
    file.write_text("what tapas evaluate found")
    try_to_report(copied.path, said.append, judge=True)
    assert said == [f"Report: {file}"]
    assert file.read_text() == "what tapas evaluate found"
    os.utime(file, (1, 1))  # older than the journal
    try_to_report(copied.path, said.append, judge=False)
    assert file.read_text().startswith("<!doctype html>")


def test_no_more_users_are_judged_after_training_than_while_training(copied, monkeypatch):
    monkeypatch.setattr(report, "MOST_JUDGED", 11)
    try_to_report(copied.path, lambda words: None, judge=True)
    assert "MAP@20 of 11 validation users" in (copied.path / "report.html").read_text()


def test_a_split_without_validation_is_told(copied):
    split = SplitConfig(kind="last", validation=0, test=1)
    text = report_page(replace(copied, config=replace(copied.config, split=split)))
    assert "validation: 0 users" in text


def test_items_that_may_not_be_listed_again_have_no_part(folder, tmp_path):
    """All that one part would list is left out, so that lists may be short."""
    file = write_chain(tmp_path / "log.parquet", num_users=30, num_items=25, num_baskets=9)
    config = configured(file)
    config = replace(config, loop=replace(config.loop, exclude_seen=True))
    session.train(config, tmp_path / "run", cache=tmp_path / "cache")
    run = open_run(tmp_path / "run")
    facts = judged(run).facts
    assert facts.listed["copy"] == 0
    assert sum(facts.listed.values()) == pytest.approx(1)
