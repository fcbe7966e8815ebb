"""`tapas cite`: BibTeX of the library and of the methods of a run."""

from pathlib import Path
from typing import Annotated

import typer

from tapas.cli.exit_codes import report_errors
from tapas.cli.options import OwnMethods, import_methods
from tapas.cli.terminal import print_lines
from tapas.comparison.contenders import by_name
from tapas.comparison.settings import SETTINGS
from tapas.errors import DataError
from tapas.heads.citations import bibtex_of
from tapas.heads.own_method import NotImportedError
from tapas.json_toml import parse_json
from tapas.regular_file import read_given
from tapas.training.config import HeadConfig, OptimizerConfig, TrainConfig
from tapas.version import __version__

ROW_OPTIMIZERS = {
    "rowwise-adagrad": ("duchi2011adaptive",),
    "adagrad": ("duchi2011adaptive",),
    "lazy-adam": ("kingma2015adam",),
    "sgd": (),
}


SOFTWARE = f"""@software{{tapas_softmax,
  title = {{tapas-softmax}},
  author = {{{{The tapas-softmax developers}}}},
  version = {{{__version__}}},
  license = {{Apache-2.0}},
}}"""  # as in CITATION.cff


def cite_library() -> str:
    """BibTeX of this library and of the TAPAS paper."""
    return f"{SOFTWARE}\n\n{bibtex_of(['bai2017tapas'])}"


def cite_run(config: TrainConfig) -> str:
    """BibTeX of the papers of a run: its method and the optimizer of its class vectors."""
    return bibtex_of((*papers_of(config.head), *optimizer_papers(config.optimizer)))


def papers_of(head: HeadConfig) -> tuple[str, ...]:
    """BibTeX keys of the papers of a method with these options."""
    return head.kind.papers_of(head.options)


def optimizer_papers(optimizer: OptimizerConfig) -> tuple[str, ...]:
    return ROW_OPTIMIZERS[optimizer.rows]


def is_comparison(folder: Path) -> bool:
    return (folder / SETTINGS).is_file()


def cite_comparison(folder: Path) -> str:
    """BibTeX of the papers of all methods in a comparison, and of their optimizer."""
    content = read_given(folder / SETTINGS)
    try:
        settings = parse_json(content)
        contenders = by_name(settings["contenders"])
        optimizer = OptimizerConfig(rows=settings["optimizer"]["rows"])
    except NotImportedError:
        raise
    except (ValueError, KeyError, TypeError) as error:
        raise DataError(
            f"{folder / SETTINGS} cannot be read as the settings of a comparison: {error}. Restore "
            "it from a backup."
        ) from None
    heads = [contender.head(1, None) for contender in contenders]
    return bibtex_of(
        [key for head in heads for key in papers_of(head)] + [*optimizer_papers(optimizer)]
    )


def cite(
    run: Annotated[
        Path | None,
        typer.Argument(
            metavar="RUN",
            help="Folder of a run or of a comparison, to cite its methods and the library. "
            "Default: cite the library and the TAPAS paper.",
            show_default=False,
        ),
    ] = None,
    method: OwnMethods = None,
) -> None:
    """Print BibTeX for the library and the methods of a run."""
    with report_errors():
        from tapas.training.run_folder import open_run

        import_methods(method)
        if run is None:
            print_lines(*cite_library().splitlines())
        else:
            cited = cite_comparison(run) if is_comparison(run) else cite_run(open_run(run).config)
            print_lines(*f"{cited}\n\n{SOFTWARE}".lstrip().splitlines())
