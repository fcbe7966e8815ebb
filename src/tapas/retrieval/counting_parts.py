"""The counting parts of an exported model: what they counted, and their numbers.

counting.safetensors   numbers.* are those of `Mixture`; starts, followers and counts are those of
                       `Transitions`, left out if the model does not follow
"""

from pathlib import Path

import torch
from torch import Tensor

from tapas.errors import DataError
from tapas.mixture import CopyPart, FollowPart, Mixture, Transitions
from tapas.retrieval.tensor_file import open_tensors, write_tensors

FORMAT = "tapas-counting-1"
PREFIX = "numbers."
COUNTED = ("starts", "followers", "counts")


def write_counting_parts(path: Path, mixture: Mixture) -> None:
    """Write `mixture`; a failure leaves no file."""
    tensors = {f"{PREFIX}{name}": value for name, value in mixture.state_dict().items()}
    if mixture.follow is not None:
        tensors |= {name: getattr(mixture.follow.transitions, name) for name in COUNTED}
    write_tensors(path, FORMAT, tensors)


def read_counting_parts(path: Path, num_classes: int) -> Mixture:
    """The mixture of a file that `write_counting_parts` wrote; DataError if it is damaged."""
    with open_tensors(path, FORMAT) as file:
        tensors: dict[str, Tensor] = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    counted = [tensors.pop(name) for name in COUNTED if name in tensors]
    numbers = {name.removeprefix(PREFIX): value for name, value in tensors.items()}
    follow = None
    if counted:
        follow = FollowPart(_transitions(path, counted, num_classes))
    copies = any(name.startswith("copy.") for name in numbers)
    if not copies and follow is None:
        raise DataError(f"{path} is damaged: it has no counting part. Export again.")
    mixture = Mixture(copy=CopyPart() if copies else None, follow=follow)
    known = {name: (value.shape, value.dtype) for name, value in mixture.state_dict().items()}
    found = {name: (value.shape, value.dtype) for name, value in numbers.items()}
    if found != known or not all(bool(value.isfinite().all()) for value in numbers.values()):
        raise DataError(f"{path} is damaged: its numbers are not those of a mixture. Export again.")
    mixture.load_state_dict(numbers)
    return mixture


def _transitions(path: Path, counted: list[Tensor], num_classes: int) -> Transitions:
    """Checked: a wrong start or follower would read memory of others."""
    wrong = f"{path} is damaged: what it counts does not fit {num_classes:,} items. Export again."
    if [x.dtype for x in counted] != [torch.int64, torch.int32, torch.float32]:
        raise DataError(wrong)
    starts, followers, counts = counted
    if starts.shape != (num_classes + 1,) or followers.shape != counts.shape:
        raise DataError(wrong)
    ascend = int(starts[0]) == 0 and bool((starts[1:] >= starts[:-1]).all())
    if not ascend or int(starts[-1]) != len(followers):
        raise DataError(wrong)
    if len(followers) and not 0 <= int(followers.min()) <= int(followers.max()) < num_classes:
        raise DataError(wrong)
    if not bool(((counts > 0) & counts.isfinite()).all()):
        raise DataError(wrong)
    return Transitions(starts, followers, counts)
