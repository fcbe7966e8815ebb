"""How a CSV file is written: encoding, separator, header, and lines to skip."""

import re
from dataclasses import dataclass
from pathlib import Path

from tapas.data.log_options import check_separator
from tapas.data.text_lines import UTF8, read_start
from tapas.errors import DataError

SEPARATORS = (",", "\t", ";", "|", "::")  # of two that occur as often, the first is taken


@dataclass(frozen=True, slots=True)
class Layout:
    """What is needed to read a CSV file."""

    separator: str
    encoding: str = UTF8
    num_skipped: int = 0  # lines before the header: blank ones, and Excel's "sep=;"
    header: bool = True
    spaces: bool = False  # after each separator, not part of the values

    @property
    def is_plain(self) -> bool:
        """Whether polars can read the file as it is."""
        return self.encoding == UTF8 and not self.spaces and len(self.separator.encode()) == 1


def find_layout(path: Path, separator: str | None = None, *, no_header: bool = False) -> Layout:
    """The layout of `path`, from its first lines; a `separator` that is given is taken."""
    encoding, start = read_start(path)
    lines = [line.strip("\r\ufeff") for line in start]
    num_skipped = next((row for row, line in enumerate(lines) if line.strip()), None)
    if num_skipped is None:
        raise DataError(f"{path} is empty. Leave it out.")
    first = lines[num_skipped]
    if len(lines) == 1 and "\r" in first:
        raise DataError(
            f"{path} ends its lines with carriage returns alone. Save it with line ends \\n or "
            "\\r\\n."
        )
    declared = re.fullmatch(r"sep=(.)\s*", first, re.IGNORECASE)
    if declared:
        num_skipped += 1
        first = lines[num_skipped] if num_skipped < len(lines) else ""
    unquoted = re.sub(r'"[^"]*"', "", first)
    if separator is not None:
        found = check_separator(separator)
    elif declared:
        found = declared[1]
    else:
        found = max(SEPARATORS, key=unquoted.count)
    spaces = found != " " and found in unquoted and all(
        part.startswith(" ") for part in unquoted.split(found)[1:]
    )  # fmt: skip
    return Layout(found, encoding, num_skipped, not no_header, spaces)
