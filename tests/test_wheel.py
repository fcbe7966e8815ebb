"""What `pip install .` puts on a machine is the whole package and nothing else."""

import shutil
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent


@pytest.mark.slow
def test_the_wheel_holds_the_package_and_imports_from_it(tmp_path):
    copy = tmp_path / "project"  # setuptools would leave its build folder in ours
    shutil.copytree(ROOT / "src", copy / "src", ignore=shutil.ignore_patterns("*.egg-info", "*.so"))
    for name in ("pyproject.toml", "setup.py", "MANIFEST.in", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, copy)
    subprocess.run(
        [sys.executable, "-m", "pip", "wheel", "--quiet", "--no-deps", "--no-build-isolation",
         "--wheel-dir", tmp_path, copy],
        check=True,
    )  # fmt: skip
    (wheel,) = tmp_path.glob("*.whl")
    unpacked = tmp_path / "site"
    zipfile.ZipFile(wheel).extractall(unpacked)
    packed = {str(p.relative_to(unpacked)) for p in unpacked.rglob("*") if p.is_file()}
    source = {
        str(p.relative_to(ROOT / "src"))
        for kind in ("*.py", "*.cpp", "*.h", "*.bib", "static/*")
        for p in (ROOT / "src" / "tapas").rglob(kind)
    }
    mine = {name for name in packed if name.startswith("tapas/")}
    built = {name for name in mine if name.startswith("tapas/native/_kernels.")}
    assert len(built) == (1 if shutil.which("g++") else 0)
    assert mine - built == source | {"tapas/py.typed"}
    script = "import tapas.native; print(tapas.__file__, tapas.native.state())"
    said = subprocess.run(
        [sys.executable, "-c", script],
        env={"PYTHONPATH": str(unpacked), "PATH": ""},
        capture_output=True, text=True, check=True, cwd=tmp_path,
    ).stdout  # fmt: skip
    assert said.startswith(str(unpacked))
