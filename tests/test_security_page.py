"""Every promise of docs/security.md is held by a test, and no code is made from data."""

import ast
import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
HOSTILE = "cli/test_hostile_folders.py"
TESTS = {
    "S1": [
        ("test_security_page.py", "test_nothing_is_made_into_code_except_where_it_is_listed"),
        (HOSTILE, "test_every_file_of_a_run_may_be_anything"),
        (HOSTILE, "test_every_file_of_an_export_may_be_anything"),
        (HOSTILE, "test_every_file_of_a_cache_may_be_anything"),
    ],
    "S2": [(HOSTILE, "test_a_run_with_the_files_of_an_export_is_a_run")],
    "S3": [
        (HOSTILE, "test_a_program_is_loaded_only_if_it_is_trusted"),
        (HOSTILE, "test_a_zip_bomb_as_a_program_is_not_opened"),
        (
            "unit/retrieval/test_encoder_weights.py",
            "test_queries_are_those_of_the_model_bit_for_bit",
        ),
        (
            "cli/test_log_to_recommendations.py",
            "test_an_export_recommends_what_the_run_recommends",
        ),
    ],
    "S4": [
        (HOSTILE, "test_names_of_modules_in_a_run_import_nothing"),
        (HOSTILE, "test_names_of_modules_in_an_export_and_in_a_comparison_import_nothing"),
    ],
    "S5": [
        (HOSTILE, "test_names_of_files_in_a_checkpoint_stay_in_its_folder"),
        (HOSTILE, "test_a_file_that_no_checksum_covers_is_not_read"),
        (HOSTILE, "test_folders_of_a_run_may_be_links_but_not_into_another_run"),
        (
            "unit/test_regular_file.py",
            "test_links_pipes_devices_and_folders_are_named_and_not_opened",
        ),
    ],
    "S6": [
        (HOSTILE, "test_training_writes_through_no_link_of_a_strangers_run"),
        (HOSTILE, "test_folders_of_a_run_may_be_links_but_not_into_another_run"),
    ],
    "S7": [
        ("unit/test_regular_file.py", "test_a_text_that_is_too_long_is_not_read"),
        (
            "unit/data/test_event_log.py",
            "test_an_array_larger_than_its_file_takes_no_memory",
        ),
        ("unit/data/test_event_log.py", "test_arrays_of_another_type_or_shape_are_refused"),
        (
            "unit/data/test_vocabulary.py",
            "test_a_small_file_with_a_huge_number_of_equal_keys_is_not_read",
        ),
        (HOSTILE, "test_shapes_of_rows_are_compared_with_the_file_before_memory_is_taken"),
        (HOSTILE, "test_sizes_that_the_checkpoint_does_not_have_are_refused"),
        (HOSTILE, "test_items_out_of_range_are_refused_even_with_right_checksums"),
    ],
    "S8": [(HOSTILE, "test_every_file_of_a_run_may_be_anything")],
    "S9": [
        ("unit/data/test_local_files.py", "test_no_call_of_polars_takes_a_path_for_a_pattern"),
        (
            "unit/data/test_local_files.py",
            "test_a_log_that_exists_is_no_pattern_and_a_saved_one_never_is",
        ),
        ("cli/test_names.py", "test_a_name_is_a_name_in_every_path"),
        ("cli/test_names.py", "test_a_key_is_a_key_in_every_option"),
        ("cli/test_terminal.py", "test_all_output_of_commands_goes_through_one_file"),
    ],
    "S10": [
        ("cli/test_verify.py", "test_random_damage_is_found_or_changes_nothing"),
        ("cli/test_verify.py", "test_damage_to_an_export_is_found"),
        (
            "unit/test_checksums.py",
            "test_a_small_file_is_always_checked_in_full_and_of_a_large_one_ends_and_a_sample",
        ),
        (
            "unit/training/test_run_folder.py",
            "test_changed_settings_are_refused_until_their_checksum_is_deleted",
        ),
    ],
    "S11": [
        ("unit/test_atomic_file.py", "test_a_private_folder_is_private_and_gone_afterwards"),
        (
            "unit/test_atomic_file.py",
            "test_links_under_names_that_could_be_guessed_are_not_followed",
        ),
        (
            "unit/test_atomic_file.py",
            "test_leftovers_of_the_same_target_are_removed_and_nothing_else",
        ),
    ],
    "S12": [("distributed/test_ray_peers.py", "test_only_this_machine_can_reach_the_session")],
    "S13": [
        ("distributed/test_ray_peers.py", "test_a_client_without_the_token_is_refused"),
        (
            "distributed/test_ray_peers.py",
            "test_the_token_and_the_sockets_are_private_to_this_user",
        ),
    ],
    "S14": [
        ("distributed/test_ray_peers.py", "test_a_client_without_the_token_is_refused"),
        (
            "unit/servers/test_ray_cluster.py",
            "test_a_cluster_that_may_not_require_a_token_is_refused",
        ),
    ],
    "S15": [
        ("web/test_guard.py", "test_a_page_whose_name_points_to_this_machine_cannot_ask"),
        ("web/test_guard.py", "test_without_the_token_everything_but_healthz_is_refused"),
        ("cli/test_serve.py", "test_other_machines_may_ask_only_with_a_token"),
        ("web/test_requests.py", "test_a_body_that_is_too_long_is_refused"),
        ("web/test_requests.py", "test_no_answer_has_a_path_of_the_machine"),
        ("fuzz/test_api_requests.py", "test_requests_are_answered_with_a_list_or_a_sentence"),
        ("browser/test_explorer.py", "test_hostile_items_are_text"),
    ],
}
# what can make code of data, and the files that may use it: what Ray sends, a method that the user
# has named, a program that the user trusts
ALLOWED = {
    "pickle": {"servers/ray_peers.py"},
    "cloudpickle.loads": {"servers/ray_peers.py"},
    "torch.export.load": {"retrieval/encoder_export.py"},
    # the first two import parts of this package on demand
    "import_module of a name": {"__init__.py", "heads/__init__.py", "heads/own_method.py"},
}
MODULES = {"pickle", "marshal", "shelve", "dill", "joblib", "yaml", "runpy", "code", "ctypes.util"}
CALLS = {"eval", "exec", "compile", "__import__"}


def test_every_promise_of_the_page_has_a_test():
    """A promise without one, and a test that is gone, both fail here."""
    promised = re.findall(r"^- \*\*(S\d+)\.\*\*", PAGE, flags=re.MULTILINE)
    assert promised == list(TESTS)
    for number, tests in TESTS.items():
        for file, name in tests:
            tree = ast.parse((ROOT / "tests" / file).read_text(encoding="utf-8"))
            assert name in {each.name for each in tree.body if isinstance(each, ast.FunctionDef)}, (
                f"{number}: {file} has no {name}"
            )
    assert len(PAGE.split()) < 1_000


def code_from_data(tree):
    """What in `tree` can make code of data."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (each.name for each in node.names if each.name in MODULES)
        elif isinstance(node, ast.ImportFrom) and node.module in MODULES:
            yield node.module
        elif isinstance(node, ast.Call):
            yield from _calls(node)


def _calls(node):
    called = ast.unparse(node.func)
    if called in CALLS:
        yield called
    if called.endswith("cloudpickle.loads"):
        yield "cloudpickle.loads"
    if called in ("torch.export.load", "torch.jit.load", "torch.hub.load"):
        yield called
    if called == "torch.load":
        safe = any(
            k.arg == "weights_only" and ast.unparse(k.value) == "True" for k in node.keywords
        )
        yield from () if safe else ("torch.load",)
    if called.endswith("import_module"):
        given = node.args[0]
        inside = isinstance(given, ast.Constant) or "tapas" in ast.unparse(given)
        yield from () if inside else ("import_module of a name",)
    if any(keyword.arg == "allow_pickle" for keyword in node.keywords):
        yield "allow_pickle"
    if any(k.arg == "shell" and ast.unparse(k.value) == "True" for k in node.keywords):
        yield "shell"


def test_nothing_is_made_into_code_except_where_it_is_listed():
    package, found = ROOT / "src" / "tapas", {}
    for file in sorted(package.rglob("*.py")):
        for what in code_from_data(ast.parse(file.read_text(encoding="utf-8"))):
            found.setdefault(what, set()).add(str(file.relative_to(package)))
    assert found == ALLOWED


@pytest.mark.parametrize(
    "code",
    [
        "import pickle",
        "from pickle import Unpickler",
        "import yaml",
        "eval(text)",
        "torch.load(file)",
        "torch.load(file, weights_only=False)",
        "np.load(file, allow_pickle=True)",
        "torch.export.load(file)",
        "importlib.import_module(name)",
        "subprocess.run(words, shell=True)",
    ],
)
def test_each_way_to_make_code_of_data_is_found(code):
    assert list(code_from_data(ast.parse(code)))


@pytest.mark.parametrize("code", ["torch.load(file, weights_only=True)", "np.load(file)"])
def test_what_is_safe_is_not_found(code):
    assert not list(code_from_data(ast.parse(code)))
