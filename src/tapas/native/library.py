"""Loading the compiled kernels, and the checks whether they can be used on tensors."""

import ctypes
from collections.abc import Iterator
from contextlib import contextmanager
from importlib.machinery import EXTENSION_SUFFIXES
from pathlib import Path

import torch
from torch import Tensor

INTERFACE = 10  # increase it with every change of SIGNATURES, here and in kernels.cpp
ADDRESS, SIZE, NUMBER, FLAG = ctypes.c_void_p, ctypes.c_int64, ctypes.c_float, ctypes.c_int
OUT_OF_MEMORY, OUT_OF_RANGE = -(1 << 63), -2
TABLE = [ADDRESS, FLAG, SIZE]  # rows, whether bfloat16, D
PLAIN = (Tensor, torch.nn.Parameter)
SIGNATURES = {
    "tapas_log_sum": [
        *TABLE, ADDRESS, SIZE, ADDRESS, SIZE, ADDRESS, ADDRESS, SIZE, FLAG, *[ADDRESS] * 3,
    ],
    "tapas_sample_memory": [*[SIZE] * 4, FLAG, ADDRESS],
    "tapas_sampled": [
        *TABLE, ADDRESS, SIZE, ADDRESS, ADDRESS, ADDRESS, SIZE, ADDRESS, SIZE, ADDRESS, ADDRESS,
        SIZE, ADDRESS, FLAG, FLAG, *[ADDRESS] * 3, NUMBER,
    ],
    "tapas_sample_gradients": [
        ADDRESS, *[SIZE] * 4, FLAG, FLAG, *[ADDRESS] * 3, SIZE, FLAG, FLAG, NUMBER, ADDRESS,
        ADDRESS, FLAG, *[ADDRESS] * 8,
    ],
    "tapas_check_batch": [ADDRESS, SIZE, ADDRESS, SIZE, SIZE],
    "tapas_gradients": [
        *TABLE, ADDRESS, SIZE, ADDRESS, SIZE, ADDRESS, ADDRESS, SIZE, ADDRESS, ADDRESS, ADDRESS,
        FLAG, ADDRESS, ADDRESS, ADDRESS,
    ],
    "tapas_second_pass": [
        ctypes.c_uint64, ADDRESS, SIZE, SIZE, ADDRESS, SIZE, SIZE, SIZE, *[ADDRESS] * 3,
    ],
    "tapas_priority": [
        *TABLE, ADDRESS, SIZE, *[ADDRESS] * 3, SIZE, ADDRESS, SIZE, ADDRESS, SIZE, NUMBER, SIZE,
        FLAG, ADDRESS, NUMBER, SIZE, *[ADDRESS] * 3,
    ],
    "tapas_batch_score": [
        *TABLE, ADDRESS, SIZE, ADDRESS, SIZE, ADDRESS, SIZE, NUMBER, FLAG, ADDRESS,
    ],
    "tapas_top": [
        *TABLE, ADDRESS, SIZE, ADDRESS, SIZE, SIZE, ADDRESS, ADDRESS, FLAG, ADDRESS, ADDRESS,
        ADDRESS,
    ],
    "tapas_update": [
        FLAG, ADDRESS, SIZE, ADDRESS, SIZE, SIZE, *[ADDRESS] * 8, FLAG,
    ],
    "tapas_sum_rows": [
        ADDRESS, SIZE, SIZE, SIZE, ADDRESS, ADDRESS, FLAG, ADDRESS, ADDRESS, ADDRESS, ADDRESS,
    ],
    "tapas_pool": [
        ctypes.c_uint64, SIZE, SIZE, SIZE, ctypes.c_double, ctypes.c_double, SIZE, *[ADDRESS] * 4,
        FLAG, FLAG, *[ADDRESS] * 3,
    ],
    "tapas_race": [ctypes.c_uint64, ADDRESS, SIZE, SIZE, FLAG, ADDRESS, ADDRESS],
    "tapas_distinct": [ADDRESS, SIZE, SIZE, SIZE, ADDRESS, ADDRESS],
    "tapas_permute": [ADDRESS, SIZE, FLAG, ADDRESS, SIZE, FLAG, FLAG, ADDRESS],
}  # fmt: skip


def load(folder: Path) -> tuple[ctypes.CDLL | None, str]:
    """The library in `folder` or None, and its state in words."""
    files = [folder / f"_kernels{suffix}" for suffix in EXTENSION_SUFFIXES]
    found = next((file for file in files if file.exists()), None)
    if found is None:
        return None, (
            "absent: not built at installation, because there was no compiler or it failed. With "
            "g++ or clang, `pip install -v --no-cache-dir --force-reinstall --no-deps "
            "tapas-softmax` builds them or shows why not."
        )
    try:
        library = ctypes.CDLL(str(found))
    except OSError as error:
        return None, f"absent: {found.name} cannot be loaded ({error})."
    names = {"tapas_interface", "tapas_usable", *SIGNATURES}
    if not all(hasattr(library, n) for n in names) or library.tapas_interface() != INTERFACE:
        return None, f"absent: {found.name} is of another version. Install tapas-softmax again."
    for name, types in SIGNATURES.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, SIZE
    if not library.tapas_usable():
        return None, "absent: this CPU has no AVX2 and FMA instructions."
    return library, "in use on CPUs"


_library, _state = load(Path(__file__).parent)
_off = False


def state() -> str:
    """Whether the kernels are in use, and why not."""
    return "switched off" if _off else _state


def multiplies_bfloat16() -> bool:
    """Whether large pools are scored with products of bfloat16 numbers; see native/halves.h."""
    return bool(library().tapas_halves())


def library() -> ctypes.CDLL:
    if _library is None:
        raise RuntimeError(f"native kernels are {_state}")
    return _library


def call(name: str, *arguments: int | float | ctypes.Array[ctypes.c_float] | None) -> int:
    """Run a kernel; torch's profiler shows it as tapas::name. Returns what the kernel returns."""
    function = getattr(library(), name)
    if torch._C._autograd._profiler_enabled():
        with torch.profiler.record_function(name.replace("_", "::", 1)):
            result: int = function(*arguments)
    else:
        result = function(*arguments)
    if result == OUT_OF_MEMORY:
        raise MemoryError(f"there is not enough memory for the intermediate results of {name}")
    return result


def supports(*tensors: Tensor) -> bool:
    """Whether the kernels can be used on `tensors`: plain tensors on the CPU."""
    if _library is None or _off:
        return False
    for t in tensors:  # noqa: SIM110 (faster, and called a dozen times in a step)
        if type(t) not in PLAIN or not t.is_cpu or t.is_neg():
            return False
    return True


def readable(weight: Tensor, *numbers: Tensor) -> bool:
    """Whether the kernels can read class rows `weight` and compute with `numbers`."""
    if weight.dtype not in (torch.float32, torch.bfloat16) or not weight.shape[1]:
        return False
    for t in numbers:
        if t.dtype is not torch.float32:
            return False
    return supports(weight, *numbers)


def writable(*stored: Tensor) -> bool:
    """Whether the kernels can update rows and state `stored` in place."""
    for t in stored:
        if t.dtype is not torch.float32 or not t.is_contiguous():
            return False
    return supports(*stored)


@contextmanager
def switched_off() -> Iterator[None]:
    """A context in which only PyTorch is used, for comparisons."""
    global _off
    before, _off = _off, True
    try:
        yield
    finally:
        _off = before
