"""`tapas info`: versions, and how to install what is missing."""

import json
import re
import tomllib
from importlib.metadata import version
from pathlib import Path

from typer.testing import CliRunner

import tapas
import tapas.native as native
from tapas.cli import info as command
from tapas.cli.main import app


def test_installed_packages_have_their_version():
    result = CliRunner().invoke(app, ["info", "--json"])
    found = json.loads(result.stdout)
    assert found["tapas"] == tapas.__version__
    assert found["native kernels"] == native.state()
    lines = CliRunner().invoke(app, ["info"]).stdout.splitlines()
    assert [line.split("  ")[0] for line in lines] == list(found)


def test_all_extras_are_listed_with_their_packages():
    project = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text())["project"]
    wanted = project["optional-dependencies"]
    del wanted["dev"]
    assert command.EXTRAS.keys() == wanted.keys()
    for extra, packages in wanted.items():
        named = [re.split("[>=]", each)[0].replace("_", "-") for each in packages]
        assert list(command.EXTRAS[extra][0]) == [n for n in named if "tapas" not in n]
    found = json.loads(CliRunner().invoke(app, ["info", "--json"]).stdout)
    words = f"typer {version('typer')}; for logs and this command"
    assert found["extra train"].endswith(words)


def test_missing_packages_have_their_install_command(monkeypatch):
    monkeypatch.setattr(command, "EXTRAS", {"wings": (("typer", "no-such-package"), "flying")})
    with native.switched_off():
        lines = CliRunner().invoke(app, ["info"]).stdout.splitlines()
    assert lines[-2:] == [
        f"{'native kernels':<20}switched off",
        f"{'extra wings':<20}no-such-package is not installed; for flying: "
        'pip install "tapas-softmax[wings]"',
    ]


def test_the_version_is_one_line():
    ended = CliRunner().invoke(app, ["--version"])
    assert (ended.exit_code, ended.stdout) == (0, f"tapas {tapas.__version__}\n")
