"""The flag `--set SECTION.NAME=VALUE`, which reaches every setting."""

import tomllib

from tapas.errors import UsageError
from tapas.training.config import JSON

Layer = dict[str, dict[str, JSON]]


def parse_settings(settings: list[str]) -> Layer:
    """SECTION.NAME=VALUE, the value as TOML has it; a bare word is a string."""
    layer: Layer = {}
    for setting in settings:
        name, equals, value = setting.partition("=")
        section, dot, key = name.strip().partition(".")
        if not (equals and dot and key):
            raise UsageError(f"--set {setting!r} is not SECTION.NAME=VALUE, as in head.alpha=0.5.")
        try:
            parsed = tomllib.loads(f"value = {value}")["value"]
        except tomllib.TOMLDecodeError:
            parsed = value
        layer.setdefault(section, {})[key] = parsed
    return layer
