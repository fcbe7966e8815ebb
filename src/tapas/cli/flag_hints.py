"""`Command`: for a flag that people know from elsewhere, an error that names ours."""

from typing import Any

from typer.core import TyperCommand

OURS = {
    "--batch-size": "--batch",
    "--cuda": "--device cuda",
    "--delimiter": "--separator",
    "--gpu": "--device cuda",
    "--learning-rate": "--lr",
    "--limit": "--users",
    "--max-steps": "--steps",
    "--model": "--encoder",
    "--most": "--users",
    "--output": "--out",
    "--presample": "--presample-factor",
    "--repeats": "--copy",
    "--samples": "--num-samples",
    "--sep": "--separator",
    "--timestamp": "--time",
}


class Command(TyperCommand):
    """A command whose error for a flag in OURS names the flag that it has instead."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        try:
            return super().parse_args(ctx, args)
        except Exception as error:
            ours = OURS.get(getattr(error, "option_name", ""), "")
            known = {flag for parameter in self.params for flag in parameter.opts}
            if hasattr(error, "possibilities") and ours.split(" ")[0] in known:
                error.possibilities = None
                error.message += f". Use {ours}."  # type: ignore[attr-defined]
            raise
