"""A class outside of the package becomes a method by its name, "module:Class"."""

import sys
from dataclasses import replace

import pytest
import torch

import tapas.heads.own_method as own_method
from tapas import LocalTable, UsageError
from tapas.comparison.runs import known_scores
from tapas.heads import METHODS, SampledSoftmax, import_method, method_class
from tapas.heads.facts import BuildContext, Option
from tapas.optim import RowwiseAdagrad
from tapas.training.config import HeadConfig, build_config

FIRST = """
from tapas.candidates import Candidates
from tapas.heads import SharedSample
import torch

class First(SharedSample):
    def __init__(self, num_classes=None, dim=None, *, num_samples, ARGUMENTS**options):
        super().__init__(num_classes, dim, **options)
        self.num_samples, self.given = num_samples, dict(locals())

    def candidates(self, batch):
        return Candidates(torch.arange(self.num_samples), torch.zeros(self.num_samples))
"""


@pytest.fixture
def write(tmp_path, monkeypatch):
    """Writes modules into the current folder; what they import is forgotten afterwards."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    monkeypatch.setattr(own_method, "OWN_METHODS", registered := {})
    monkeypatch.setattr("tapas.heads.OWN_METHODS", registered)
    modules = set(sys.modules)
    yield lambda text, name="mine": (tmp_path / f"{name}.py").write_text(text)
    for name in set(sys.modules) - modules:
        del sys.modules[name]


def first(arguments=""):
    return FIRST.replace("ARGUMENTS", arguments)


def context(num_classes=31):
    return BuildContext(
        counts=torch.arange(num_classes),
        dim=3,
        seed=5,
        steps=1,
        row_optimizer=RowwiseAdagrad.fused(lr=0.1),
        table=LocalTable(num_classes, 3),
    )


def test_options_are_the_arguments_of_the_constructor(write):
    write(
        "from __future__ import annotations\n"
        + first("boost=0.5, times: float = 2, most: int | None = None, way='up', on=False, f=len, ")
    )
    kind = import_method("mine:First")
    assert kind.options == {
        "num_samples": own_method.NUM_SAMPLES,
        "boost": Option(0.5, float),
        "times": Option(2.0, float),
        "most": Option(None, int),
        "way": Option("up", str),
        "on": Option(False, bool),
    }
    assert (kind.title, kind.paper, kind.bibtex) == ("First", "", ())
    config = HeadConfig.of(method="mine:First", boost=2, on=True, way="down")
    head = kind.from_options(config.options, context())
    assert (head.num_samples, head.seed) == (3, 5)
    given = {name: head.given[name] for name in ("boost", "times", "most", "way", "on", "f")}
    assert given == {"boost": 2.0, "times": 2.0, "most": None, "way": "down", "on": True, "f": len}
    with pytest.raises(UsageError, match=r"^head\.on must be true or false, got 1\.$"):
        HeadConfig.of(method="mine:First", on=1)
    with pytest.raises(UsageError, match=r"^head\.way must be a string, got 2\.$"):
        HeadConfig.of(method="mine:First", way=2)
    with pytest.raises(UsageError, match=r"^unknown name in \[head\] 'bost'. Did you mean 'boost'"):
        HeadConfig.of(method="mine:First", bost=2)


def test_counts_and_a_proposal_are_filled_in(write):
    write(first("counts, ") + first("proposal=None, counts=None, ").replace("First", "Second"))
    kind = import_method("mine:First")
    assert (list(kind.options), kind.reads) == (["num_samples"], {"counts"})
    head = kind.from_options({"num_samples": 4}, context())
    assert torch.equal(head.given["counts"], torch.arange(31))
    kind = import_method("mine:Second")
    assert (list(kind.options), kind.reads) == (list(SampledSoftmax.options), frozenset())
    options = HeadConfig.of(method="mine:Second").options
    assert kind.from_options(options, context()).given["proposal"].alpha == 0.75


def test_a_subclass_of_a_method_has_its_options_and_papers(write):
    write(
        "from tapas import TapasSoftmax\nclass Mine(TapasSoftmax):\n"
        "    def __init__(self, *args, hot=2.0, **options):\n"
        "        super().__init__(*args, **options)\n        self.hot = hot\n"
    )
    kind = import_method("mine:Mine")
    assert set(kind.options) == {*METHODS["tapas"].options, "hot"}
    assert (kind.title, kind.paper) == ("Mine", "Bai, Goldman, Zhang 2017")
    assert "hot" not in METHODS["tapas"].options
    head = kind.from_options(HeadConfig.of(method="mine:Mine", hot=3).options, context())
    assert (head.hot, head.presample_factor, head.proposal.alpha) == (3.0, 8, 0.75)


def test_a_default_of_the_subclass_replaces_that_of_its_method(write):
    write(
        "from tapas import TapasSoftmax\nclass Mine(TapasSoftmax):\n"
        "    def __init__(self, *args, num_samples=5, presample_factor=4, **options):\n"
        "        super().__init__(*args, num_samples=num_samples, "
        "presample_factor=presample_factor, **options)\n"
    )
    kind = import_method("mine:Mine")
    factor = METHODS["tapas"].options["presample_factor"]
    assert kind.options["presample_factor"] == replace(factor, default=4)
    head = kind.from_options(HeadConfig.of(method="mine:Mine").options, context())
    assert (head.num_samples, head.presample_factor) == (5, 4)


def test_the_scores_of_a_shared_sample_are_counted(write):
    write(first())
    head = import_method("mine:First").from_options({"num_samples": 4}, context())
    assert known_scores(head) is None
    for _ in range(2):
        head(torch.ones(2, 3), torch.tensor([0, 1]))
    assert known_scores(head) == 4


@pytest.mark.parametrize("method", METHODS)
def test_no_method_of_ours_is_taken_for_a_clash(method):
    own_method._check_small_head(method, METHODS[method])


@pytest.mark.parametrize(
    "clashing",
    ["step = 0.1", "dim = 7", "topk = 5", "ranks = 3", "seed = None", "options = {}", "_draws = 2",
     "tables = torch.nn.ModuleList()"],
)  # fmt: skip
def test_a_name_that_the_base_class_uses_is_refused(write, clashing):
    write(first().replace("self.num_samples,", f"self.{clashing}\n        self.num_samples,"))
    with pytest.raises(UsageError) as refused:
        import_method("mine:First")
    assert str(refused.value) == (
        f"mine:First sets {clashing.split()[0]}, which SharedSample uses itself. Give yours "
        "another name."
    )


def test_a_method_called_step_is_refused(write):
    write(first() + "\n    def step(self):\n        pass\n")
    with pytest.raises(UsageError, match=r"^mine:First sets step, which SharedSample uses itself"):
        import_method("mine:First")


def test_only_import_method_imports(write, tmp_path):
    write(f"open({str(tmp_path / 'ran')!r}, 'w').close()\n" + first())
    for read in (
        lambda: method_class("mine:First"),
        lambda: build_config({"log": {"files": ["a"]}, "head": {"method": "mine:First"}}),
    ):
        with pytest.raises(UsageError) as refused:
            read()
        assert str(refused.value) == (
            "'mine:First' is a method of your own, which is imported only if you name it. Pass "
            "--method mine:First; in Python, call tapas.heads.import_method('mine:First') first."
        )
    assert not (tmp_path / "ran").exists()
    assert import_method("mine:First") is import_method("mine:First") is method_class("mine:First")


def test_servers_are_refused(write):
    write(first())
    import_method("mine:First")
    layer = {"log": {"files": ["a"]}, "head": {"method": "mine:First"}, "service": {"servers": 2}}
    with pytest.raises(
        UsageError,
        match=r"^the workers on Ray cannot import 'mine:First', a method of your own: train it in "
        r"one process or with torchrun, without --servers\.$",
    ):
        build_config(layer)


CLASSES = first() + (
    "\nclass Plain: pass\n"
    "class Half(SharedSample): pass\n"
    "class Needy(First):\n    def __init__(self, strength, **options): pass\n"
    "class Narrow(First):\n    def __init__(self, num_classes, dim): pass\n"
    "from tapas import TapasSoftmax\nclass Fixed(TapasSoftmax):\n"
    "    def __init__(self, *args, **options):\n"
    "        super().__init__(*args, presample_factor=4, **options)\n"
)


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("mine:", "'mine:' is not a method of your own. Write module:Class."),
        ("a/b.py:Class", "'a/b.py:Class' is not a method of your own. Write module:Class."),
        (
            "mien:First",
            "there is no module mien for 'mien:First', neither in {here} nor installed. Start "
            "tapas in the folder that has it, or set PYTHONPATH.",
        ),
        (
            "mine:Frist",
            "{here}/mine.py has no class Frist. Heads there: First, Half, Needy, Narrow, Fixed.",
        ),
        (
            "mine:Plain",
            "Plain in {here}/mine.py is not a head. Subclass tapas.heads.SharedSample, LookupHead "
            "or Head.",
        ),
        ("mine:Half", "Half in {here}/mine.py lacks candidates."),
        (
            "mine:Needy",
            "the constructor of mine:Needy needs strength, which has no default. Give it one: a "
            "number, a string or a bool.",
        ),
        (
            "mine:Narrow",
            "the constructor of mine:Narrow does not fit: got an unexpected keyword argument "
            "'seed'. It is called with dim, num_classes, seed, table, by name: write def "
            "__init__(self, num_classes=None, dim=None, *, num_samples, **options) and pass "
            "**options on.",
        ),
        (
            "mine:Fixed",
            "the constructor of mine:Fixed gets presample_factor and passes another one to "
            "TapasSoftmax. Make it an argument, presample_factor=VALUE, and pass that on.",
        ),
        ("broken:A", "importing broken failed ({here}/broken.py, line 2): NameError: name "),
        ("typo:A", "importing typo failed ({here}/typo.py, line 1): SyntaxError: "),
        ("needs:A", "importing needs failed ({here}/needs.py, line 1): ModuleNotFoundError: No "),
    ],
)
def test_what_cannot_be_imported_says_why(write, tmp_path, name, words):
    write(CLASSES)
    write("x = 1\ny = z\n", "broken")
    write("class A(:\n", "typo")
    write("import not_there_at_all\n", "needs")
    with pytest.raises(UsageError) as refused:
        import_method(name)
    said = str(refused.value)
    assert said.startswith(words.format(here=tmp_path))
    assert said.endswith(".")
    assert own_method.OWN_METHODS == {}
