"""Methods of one's own: classes outside of this package, named "module:Class".

`import_method` imports such a class, builds a small head to check it, and completes what describes
it: the options that it does not declare are read from the signature of its constructor. Names in
files, such as the config.toml of a run, import nothing: a run folder from somebody else must not
run their code.
"""

import inspect
import os
import re
import sys
import traceback
from dataclasses import replace
from importlib import import_module
from types import NoneType
from typing import Any, get_args, get_type_hints

import torch

from tapas.errors import UsageError
from tapas.heads.base import Head
from tapas.heads.facts import NUM_SAMPLES, BuildContext, Option, Options, drawn_options
from tapas.heads.flat import FlatHead, FlatOptions
from tapas.heads.tree import TreeHead, TreeOptions
from tapas.optim import RowwiseAdagrad
from tapas.tables import LocalTable

OWN_METHODS: dict[str, type[Head]] = {}  # imported so far, by name
PLAIN = (bool, int, float, str)  # types of options
EXAMPLE = "def __init__(self, num_classes=None, dim=None, *, num_samples, **options)"
# what `Head.arguments` and its overrides pass beside options
PASSED = {"num_classes", "dim", *FlatOptions.__annotations__, *TreeOptions.__annotations__}
TWICE = re.compile(r"got multiple values for (?:keyword )?argument '(\w+)'")
NO_SETTER = re.compile(r"property '(\w+)' of .* has no setter")


class NotImportedError(UsageError):
    """A method of one's own that was not imported in this process."""


def is_own(name: str) -> bool:
    """Whether `name` is that of a method of one's own.

    >>> is_own("mine:Hardest"), is_own("tapas")
    (True, False)
    """
    return ":" in name


def imported_method(name: str) -> type[Head]:
    """The class `name`, if it was imported before in this process."""
    if name not in OWN_METHODS:
        raise NotImportedError(
            f"'{name}' is a method of your own, which is imported only if you name it. Pass "
            f"--method {name}; in Python, call tapas.heads.import_method({name!r}) first."
        )
    return OWN_METHODS[name]


def import_method(name: str) -> type[Head]:
    """Import the head `name`, "module:Class", also from the current folder; returns the class.

    The constructor must take what `FlatHead` (or `TreeHead`) takes, best by `**options`. Its
    other arguments become options of the method: a number, string or bool by the type of its
    default. An argument `num_samples`, `proposal` or `counts` is what it is for other heads.
    """
    if name in OWN_METHODS:
        return OWN_METHODS[name]
    module_name, _, class_name = name.partition(":")
    if not class_name.isidentifier() or not all(s.isidentifier() for s in module_name.split(".")):
        raise UsageError(f"'{name}' is not a method of your own. Write module:Class.")
    module = _import_module(name, module_name)
    kind: Any = getattr(module, class_name, None)
    where = getattr(module, "__file__", None) or module_name
    if kind is None:
        heads = [n for n, k in vars(module).items() if _is_head(k) and k.__module__ == module_name]
        known = f" Heads there: {', '.join(heads)}." if heads else ""
        raise UsageError(f"{where} has no class {class_name}.{known}")
    if not _is_head(kind):
        raise UsageError(
            f"{class_name} in {where} is not a head. Subclass tapas.heads.SharedSample, LookupHead "
            "or Head."
        )
    if missing := sorted(getattr(kind, "__abstractmethods__", ())):
        raise UsageError(f"{class_name} in {where} lacks {', '.join(missing)}.")
    _describe(name, kind)
    _check_small_head(name, kind)
    OWN_METHODS[name] = kind
    return OWN_METHODS[name]


def _is_head(kind: object) -> bool:
    return isinstance(kind, type) and issubclass(kind, Head)


def _import_module(name: str, module_name: str) -> Any:
    here = os.getcwd()
    if here not in sys.path and "" not in sys.path:
        sys.path.insert(0, here)  # as `python -m` has it
    try:
        return import_module(module_name)
    except ModuleNotFoundError as error:
        parents = [module_name.rsplit(".", n)[0] for n in range(module_name.count(".") + 1)]
        if error.name not in parents:
            raise _failed(module_name, error) from error
        raise UsageError(
            f"there is no module {error.name} for '{name}', neither in {here} nor installed. Start "
            "tapas in the folder that has it, or set PYTHONPATH."
        ) from None
    except Exception as error:
        raise _failed(module_name, error) from error


def _failed(module_name: str, error: Exception) -> UsageError:
    """An error of the user's module, with the line that raised it."""
    frames = traceback.extract_tb(error.__traceback__)
    last = frames[-1] if frames else None
    if isinstance(error, SyntaxError):
        where = f" ({error.filename}, line {error.lineno})"
        reason = error.msg
    else:
        where = f" ({last.filename}, line {last.lineno})" if last else ""
        reason = str(error)
    return UsageError(f"importing {module_name} failed{where}: {type(error).__name__}: {reason}.")


def _describe(name: str, kind: type[Head]) -> None:
    """Set the class attributes that describe a method, as far as the class does not."""
    found = kind.options
    if "options" not in vars(kind):
        read = _read_options(name, kind)
        kept = {
            n: replace(o, default=read[n].default) if n in read else o for n, o in found.items()
        }
        found = {**read, **kept}
    reads = set(kind.reads)
    if "counts" in inspect.signature(kind).parameters and "proposal" not in found:
        reads.add("counts")
    passed = {"dim", "seed", *(o.argument or n for n, o in found.items()), *reads}
    passed |= {"row_optimizer"} if issubclass(kind, TreeHead) else {"num_classes"}
    passed |= {"table"} if issubclass(kind, FlatHead) else set()
    try:
        inspect.signature(kind).bind(**dict.fromkeys(sorted(passed)))
    except TypeError as error:
        raise UsageError(
            f"the constructor of {name} does not fit: {error}. It is called with "
            f"{', '.join(sorted(passed))}, by name: write {EXAMPLE} and pass **options on."
        ) from None
    kind.options, kind.reads = found, frozenset(reads)
    if "title" not in vars(kind):
        kind.title = kind.__name__
    if not hasattr(kind, "method"):
        kind.method = name


def _read_options(name: str, kind: type[Head]) -> Options:
    """Options by the signature of the constructor."""
    try:
        hints = get_type_hints(kind.__init__)
    except Exception:  # an annotation that cannot be evaluated
        hints = {}
    found: dict[str, Option] = {}
    for argument in inspect.signature(kind).parameters.values():
        if argument.kind in (argument.VAR_KEYWORD, argument.VAR_POSITIONAL):
            continue
        if argument.name == "num_samples":
            given = argument.default if type(argument.default) is int else None
            found["num_samples"] = replace(NUM_SAMPLES, default=given)
        elif argument.name == "proposal":
            found |= {n: o for n, o in drawn_options().items() if n != "num_samples"}
        elif argument.name not in PASSED and argument.name != "counts":
            option = _option(argument.default, hints.get(argument.name))
            if option is not None:
                found[argument.name] = option
            elif argument.default is argument.empty:
                raise UsageError(
                    f"the constructor of {name} needs {argument.name}, which has no default. Give "
                    "it one: a number, a string or a bool."
                )
    return found


def _option(default: Any, hint: Any) -> Option | None:
    """The option for an argument with this default and annotation; None if there is none."""
    if type(default) in PLAIN:
        is_float = type(default) is int and hint is float
        return Option(float(default) if is_float else default, float if is_float else type(default))
    kinds = [kind for kind in get_args(hint) if kind is not NoneType]
    if default is None and len(kinds) == 1 and kinds[0] in PLAIN:
        return Option(None, kinds[0])
    return None


def _check_small_head(name: str, kind: type[Head]) -> None:
    """Build a head with few classes: raise if names of the class clash with those of its base.

    Other errors are left to the real head, whose sizes may be the only ones that fit.
    """
    ids = torch.arange(16)
    context = BuildContext(
        counts=ids + 1,
        dim=2,
        seed=3,
        steps=4,
        row_optimizer=RowwiseAdagrad.fused(lr=0.1),
        table=LocalTable(len(ids), 2),
        pairs=lambda: (ids, ids, ids + 1),
        upcoming=lambda step: ids,
    )
    options = {n: option.default for n, option in kind.options.items()}
    base = next(each for each in kind.__mro__ if each.__module__.startswith("tapas."))
    try:
        head = kind.from_options(options, context)
    except (TypeError, AttributeError) as error:
        if twice := TWICE.search(str(error)):
            raise UsageError(
                f"the constructor of {name} gets {twice[1]} and passes another one to "
                f"{base.__name__}. Make it an argument, {twice[1]}=VALUE, and pass that on."
            ) from None
        if unsettable := NO_SETTER.search(str(error)):
            raise _clash(name, unsettable[1], base) from None
        return
    except Exception:
        return
    stored = {"num_classes": len(ids), "dim": 2, "seed": 3, "step": 0}
    of_class = {n for each in kind.__mro__[: kind.__mro__.index(base)] for n in vars(each)}
    of_head = {*vars(head), *head._buffers, *head._parameters, *head._modules}
    clashes = [
        *(n for n, value in stored.items() if n in of_class or getattr(head, n, None) != value),
        *sorted(n for n in of_head if hasattr(base, n)),
    ]
    if clashes:
        raise _clash(name, clashes[0], base)


def _clash(name: str, attribute: str, base: type[Head]) -> UsageError:
    return UsageError(
        f"{name} sets {attribute}, which {base.__name__} uses itself. Give yours another name."
    )
