"""`tapas info`: versions, and how to install what is missing."""

import json

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


def test_missing_packages_have_their_install_command(monkeypatch):
    monkeypatch.setattr(command, "EXTRAS", {"no-such-package": "flying"})
    with native.switched_off():
        lines = CliRunner().invoke(app, ["info"]).stdout.splitlines()
    assert lines[-2:] == [
        f"{'native kernels':<20}switched off",
        f"{'no-such-package':<20}not installed; for flying: pip install no-such-package",
    ]


def test_the_version_is_one_line():
    ended = CliRunner().invoke(app, ["--version"])
    assert (ended.exit_code, ended.stdout) == (0, f"tapas {tapas.__version__}\n")
