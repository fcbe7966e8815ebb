"""Settings, histories and lists that users write: what they say, or one sentence."""

import io
import json

import polars as pl
import pytest
from fuzz.mutations import HOSTILE, changed_json, damaged, json_text
from fuzz.readers import fuzz_target, outcome

from tapas.cli.options import parse_settings
from tapas.cli.recommend import _split_keys
from tapas.data.list_files import read_lists
from tapas.data.splits import split_log
from tapas.evaluation.points import evaluation_points
from tapas.training.config import as_tables, as_toml, build_config, read_toml
from tapas.training.run_folder import open_run
