"""The reader's model: import the function that builds it, check what it returns, and try one step of it."""

from __future__ import annotations

import copy
import importlib
import os
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from ...runtime.clock import now
from ...runtime.group import device
from .together import TuningError


@contextmanager
def in_user_code(what: str) -> Iterator[None]:
    """Turn what the reader's code raises into one line that says where it comes from."""
    try:
        yield
    except TuningError:
        raise
    except (Exception, SystemExit) as error:
        frames = traceback.extract_tb(error.__traceback__)
        kit = str(Path(__file__).parents[2])
        skipped = (kit, os.path.dirname(torch.__file__), os.path.dirname(os.__file__), "<frozen")
        own = [frame for frame in frames if not frame.filename.startswith(skipped)]
        where = f" (line {own[-1].lineno} of {os.path.basename(own[-1].filename)})" if own else ""
        text = " ".join(str(error).split())
        raise TuningError(f"{what} raised {type(error).__name__}: {text[:300]}{where}") from error


def build(target: str, folder: str) -> tuple[nn.Module, Any, Any]:
    """Import the function, call it, and check what it returns."""
    module_name, _, function_name = target.partition(":")
    sys.path.insert(0, folder)
    importlib.invalidate_caches()
    with in_user_code(f"importing {module_name}"):
        try:
            module = importlib.import_module(module_name)
        except ModuleNotFoundError as error:
            if error.name is None or not f"{module_name}.".startswith(f"{error.name}."):
                raise
            raise TuningError(
                f"there is no module {error.name!r}; looked in {folder} and on Python's path, "
                "start in the folder that holds it or set PYTHONPATH"
            ) from None
    function = getattr(module, function_name, None)
    if not callable(function):
        own = [n for n, v in vars(module).items() if callable(v) and getattr(v, "__module__", "") == module_name]
        there = f"it defines {', '.join(own[:8])}" if own else "it defines none"
        raise TuningError(f"module {module_name} has no function {function_name!r}; {there}")
    with in_user_code(target):
        returned = function()

    contract = "it must return (model, batch) or (model, batch, loss function)"
    if not isinstance(returned, tuple | list) or len(returned) not in (2, 3):
        size = f" of {len(returned)}" if isinstance(returned, tuple | list) else ""
        raise TuningError(f"{target} returned a {type(returned).__name__}{size}; {contract}")
    model, batch, loss = (*returned, None)[:3]
    if isinstance(model, DistributedDataParallel):
        raise TuningError(
            f"{target} returned a model that is already in DistributedDataParallel; return the model itself"
        )
    if not isinstance(model, nn.Module):
        raise TuningError(
            f"{target} returned a {type(model).__name__} as the model; {contract}, and the model must be an nn.Module"
        )
    if loss is not None and not callable(loss):
        raise TuningError(
            f"{target} returned a {type(loss).__name__} as the loss function; make it callable or leave it out"
        )
    if not any(p.requires_grad for p in model.parameters()):
        raise TuningError(
            f"{target} returned a model without a parameter that requires a gradient: nothing is all-reduced"
        )
    with in_user_code(f"moving the model and the batch of {target} to {device()}"):
        model, batch = model.to(device()), _on_device(batch)
    if loss is None:
        return model, batch, _loss_of_output
    return model, batch, loss


def _on_device(batch: Any) -> Any:
    if isinstance(batch, dict):
        return {name: _on_device(value) for name, value in batch.items()}
    if isinstance(batch, tuple | list):
        return type(batch)(_on_device(value) for value in batch) if type(batch) in (tuple, list) else batch
    return batch.to(device()) if hasattr(batch, "to") else batch


def _loss_of_output(model: nn.Module, batch: Any) -> torch.Tensor:
    """The loss where none is given: the output's own, or the mean of its squares."""
    if isinstance(batch, tuple | list):
        output = model(*batch)
    else:
        output = model(**batch) if hasattr(batch, "keys") else model(batch)
    output = output.get("loss", output) if isinstance(output, dict) else getattr(output, "loss", output)
    if not isinstance(output, torch.Tensor):
        raise TuningError(
            f"the model returns a {type(output).__name__}, which is not a loss; "
            "return (model, batch, loss function), where loss_function(model, batch) gives one number"
        )
    return output if output.ndim == 0 else output.float().square().mean()


def check_same_on_all_ranks(model: nn.Module) -> None:
    """DDP needs the same model on all ranks; on gloo, one rank that differs breaks the others without a reason."""
    mine = [(name, tuple(p.shape), str(p.dtype), p.requires_grad) for name, p in model.named_parameters()]
    all_ranks: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(all_ranks, mine)
    for rank, other in enumerate(all_ranks):
        if other != all_ranks[0]:
            differs = next((f"{a} and {b}" for a, b in zip(all_ranks[0], other, strict=False) if a != b), "the number")
            raise TuningError(f"ranks 0 and {rank} built models that differ in their parameters: {differs}")


def copy_sharing_parameters(model: nn.Module) -> nn.Module:
    """A copy with gradients of its own, and the same memory for the parameters: many of them fit beside each other."""
    memo: dict[int, Any] = {id(p): nn.Parameter(p.data, p.requires_grad) for p in model.parameters()}
    with in_user_code("copying the model (copy.deepcopy)"):
        return copy.deepcopy(model, memo)


def try_step(target: str, model: nn.Module, batch: Any, loss: Any) -> float:
    """Run two steps on this rank alone, return the seconds of the second; refuse what DDP cannot train."""
    trial, took_s = copy_sharing_parameters(model), 0.0
    for _ in range(2):
        trial.zero_grad(set_to_none=True)
        began = time.perf_counter()
        with in_user_code(f"the forward of {target}"):
            value = loss(trial, batch)
        if not isinstance(value, torch.Tensor) or value.numel() != 1:
            shape = f" of shape {tuple(value.shape)}" if isinstance(value, torch.Tensor) else ""
            raise TuningError(
                f"the loss of {target} is a {type(value).__name__}{shape}; it must be a tensor of one number"
            )
        if not value.requires_grad:
            raise TuningError(f"the loss of {target} has no gradient; is it detached, or made under no_grad?")
        with in_user_code(f"the backward of {target}"):
            value.backward()  # type: ignore[no-untyped-call]
        took_s = now() - began
    trained = {name: p for name, p in trial.named_parameters() if p.requires_grad}
    unused = [name for name, p in trained.items() if p.grad is None]
    if len(unused) == len(trained):
        raise TuningError(f"no parameter of {target} got a gradient; the loss must use the model that it is given")
    if unused:
        more = f" and {len(unused) - 3} more" if len(unused) > 3 else ""
        raise TuningError(
            f"the loss does not use {', '.join(unused[:3])}{more}; freeze these parameters (requires_grad_(False)) or "
            "remove them: with find_unused_parameters=True, DDP never regroups its buckets"
        )
    sparse = [name for name, p in trained.items() if p.grad is not None and p.grad.is_sparse]
    if sparse:
        raise TuningError(
            f"{sparse[0]} has a sparse gradient, which DDP does not put in a bucket; build it with sparse=False"
        )
    return took_s
