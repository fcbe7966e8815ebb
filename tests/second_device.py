"""`use_second_device()` registers a device "second" whose tensors are computed on the CPU.

Tests run without a GPU. This device behaves like one: its tensors have another `device`,
autograd has a queue for it, and an operation on tensors of two devices is an error.
Use it in a separate process (`Forked`), because torch cannot unregister a device.
"""

from functools import partial

import torch
from torch.utils._pytree import tree_leaves, tree_map
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

NAME = "second"
CROSSES = ("aten::_to_copy", "aten::copy_", "aten::_copy_from")
TAKES_INDICES = ("aten::index", "aten::index_put", "aten::index_put_", "aten::_index_put_impl_")


class SecondTensor(torch.Tensor):
    """A tensor of the second device; its values are in `inside`, on the CPU."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inside, requires_grad=False):
        made = torch.Tensor._make_wrapper_subclass(
            cls,
            inside.size(),
            strides=inside.stride(),
            storage_offset=inside.storage_offset(),
            dtype=inside.dtype,
            layout=inside.layout,
            device=torch.device(NAME, 0),
            requires_grad=requires_grad,
        )
        made.inside = inside
        return made

    def __init__(self, inside, requires_grad=False):
        pass

    def new_tensor(self, data, *, dtype=None):  # torch's own knows no tensors of Python
        return torch.tensor(data, dtype=dtype or self.dtype, device="cpu").to(NAME)

    def tolist(self):
        return self.inside.tolist()

    def __repr__(self):
        return f"SecondTensor({self.inside})"

    @classmethod
    def __torch_dispatch__(cls, func, types, args=(), kwargs=None):
        return _compute(func, args, kwargs or {})


def use_second_device():
    """Register the device, once for each process. Keep the returned objects while it is used."""
    _setup_privateuseone_for_python_backend(NAME)
    torch.get_device_module(NAME).get_amp_supported_dtype = lambda: [torch.bfloat16]
    library = torch.library.Library("_", "IMPL")
    library.fallback(lambda func, *args, **kwargs: _compute(func, args, kwargs), "PrivateUse1")
    factories = torch.library.Library("aten", "IMPL")
    for overload in ("default", "start", "start_step"):  # torch's own resizes an empty tensor
        func = getattr(torch.ops.aten.arange, overload)
        factories.impl(func, partial(_made_there, func), "PrivateUse1")
    return library, factories


def _made_there(func, *args, **kwargs):
    return _compute(func, args, {**kwargs, "device": NAME})


def _compute(func, args, kwargs):
    name, leaves = func._schema.name, tree_leaves((args, kwargs))
    second = [x for x in leaves if isinstance(x, SecondTensor)]
    first = [x for x in leaves if isinstance(x, torch.Tensor) and not isinstance(x, SecondTensor)]
    may_mix = name in CROSSES or (name in TAKES_INDICES and isinstance(args[0], SecondTensor))
    if second and any(x.dim() for x in first) and not may_mix:
        raise RuntimeError(f"{name} was given tensors of two devices.")
    device = kwargs.get("device")
    there = bool(second) if device is None else torch.device(device).type == NAME
    if there and kwargs.get("generator") is not None:
        raise RuntimeError(f"{name} of the second device was given a generator of the CPU.")
    given = {k: torch.device("cpu") if k == "device" and v else v for k, v in kwargs.items()}
    found = func(*tree_map(_inside, args), **tree_map(_inside, given))
    known = {id(x.inside): x for x in second}  # tensors changed in place stay the same object

    def outside(x):
        if not isinstance(x, torch.Tensor) or not there:
            return x
        return known.get(id(x)) if id(x) in known else SecondTensor(x)

    return tree_map(outside, found)


def _inside(x):
    return x.inside if isinstance(x, SecondTensor) else x
