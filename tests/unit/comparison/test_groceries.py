"""The grocery log, installed or not, and the names of its products."""

from importlib.machinery import ModuleSpec

import polars as pl

from tapas.comparison import groceries


def package(tmp_path, *files):
    spec = ModuleSpec(groceries.PACKAGE, None, is_package=True)
    spec.submodule_search_locations = [str(tmp_path)]
    (tmp_path / "data").mkdir()
    for name in files:
        (tmp_path / "data" / name).touch()
    return spec


def test_the_files_of_the_package_are_found_if_all_exist(tmp_path, monkeypatch):
    spec = package(tmp_path, "transactions.parquet")
    for installed in (None, spec):
        monkeypatch.setattr(groceries, "find_spec", lambda name, found=installed: found)
        assert groceries.find_groceries() is None
    (tmp_path / "data" / "products.parquet").touch()
    assert groceries.find_groceries().products == tmp_path / "data" / "products.parquet"


def test_names_of_products_have_no_repeated_or_empty_parts(tmp_path):
    path = tmp_path / "products.parquet"
    pl.DataFrame(
        {
            "product_id": [7, 8],
            "product_type": ["APPLE SAUCE", None],
            "package_size": ["50 OZ", None],
            "product_category": ["FRUIT ", "GROCERY"],
            "department": ["GROCERY", "GROCERY"],
            "brand": ["Private", None],
        }
    ).write_parquet(path)
    assert groceries.product_names(path) == {
        7: "apple sauce, 50 oz, fruit, grocery, private",
        8: "grocery",
    }
