"""A forward recorded as the calls of operators that it made, to be replayed without the Python between them.

What a CUDA graph is to a GPU: for the same shapes the same operators run, in the same order, on the same weights; what
decides them need not run again. Measured for a decode step of a 30-layer model: half of the time was that Python.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch.overrides import TorchFunctionMode
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_flatten


class Unrecordable(RuntimeError):
    """This forward cannot be replayed; the message says what it did."""


class _Recorder(TorchDispatchMode):
    """Writes down every operator that runs, and what each of its tensors is: an input, a result, or a constant."""

    def __init__(self, inputs: Sequence[torch.Tensor], lasting: Callable[[torch.Tensor], bool]) -> None:
        super().__init__()
        self.lasting = lasting
        self.names = {id(tensor): f"i{k}" for k, tensor in enumerate(inputs)}
        self.kept: list[torch.Tensor] = list(inputs)  # an id is one tensor's for as long as that lives
        self.scope: dict[str, Any] = {}
        self.lines: list[str] = []

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        leaves, _ = tree_flatten(result)
        if self._varies(func, args):
            raise Unrecordable(f"{func} depends on more than the shapes of its inputs")
        fresh = [leaf for leaf in leaves if isinstance(leaf, torch.Tensor) and id(leaf) not in self.names]
        call = self._call(func, args, kwargs or {})
        if isinstance(result, torch.Tensor):
            self.lines.append(f"{self._name(result)} = {call}")
        elif isinstance(result, list | tuple) and len(fresh) == len(result):
            self.lines.append(f"{', '.join(self._name(part) for part in result)}, = {call}")
        elif result is None:
            self.lines.append(call)
        else:
            raise Unrecordable(f"{func} returns {type(result).__name__}")
        return result

    @staticmethod
    def _varies(func: Any, args: Any) -> bool:
        if func is torch.ops.aten.index.Tensor:  # by places its result has a known shape, by a mask it has not
            return any(index is not None and index.dtype == torch.bool for index in args[1])
        varying = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape, torch.Tag.nondeterministic_seeded)
        return any(tag in func.tags for tag in varying)

    def _call(self, func: Any, args: Any, kwargs: dict[str, Any]) -> str:
        words = [self._word(argument) for argument in args]
        words += [f"{name}={self._word(argument)}" for name, argument in kwargs.items()]
        return f"{self._constant(func, 'f')}({', '.join(words)})"

    def _word(self, argument: Any) -> str:
        """The argument as it stands in the recorded code."""
        if isinstance(argument, torch.Tensor):
            return self._name(argument) if id(argument) in self.names else self._lasting(argument)
        if isinstance(argument, list | tuple):
            return f"[{', '.join(self._word(part) for part in argument)}]"
        if argument is None or isinstance(argument, bool | int):
            return repr(argument)
        return self._constant(argument, "c")  # floats, dtypes, devices

    def _name(self, tensor: torch.Tensor) -> str:
        if id(tensor) not in self.names:
            self.names[id(tensor)] = f"t{len(self.names)}"
            self.kept.append(tensor)
        return self.names[id(tensor)]

    def _lasting(self, tensor: torch.Tensor) -> str:
        if not self.lasting(tensor):
            raise Unrecordable(f"it reads a tensor {tuple(tensor.shape)} that is neither an input nor lasting")
        return self._constant(tensor, "w")

    def _constant(self, value: Any, kind: str) -> str:
        name = f"{kind}{id(value)}"
        self.scope[name] = value
        return name


class _Watch(TorchFunctionMode):
    """Refuses what reads a tensor's values without an operator: a recording would hold them for ever."""

    ESCAPES = (torch.Tensor.tolist, torch.Tensor.numpy, torch.Tensor.__array__)

    def __torch_function__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if func in self.ESCAPES:
            raise Unrecordable(f"Tensor.{func.__name__} depends on more than the shapes of its inputs")
        return func(*args, **(kwargs or {}))


class Tape:
    """A function of tensors, recorded at its first call.

    Args:
        function: takes tensors and returns one. Its operators must follow from the inputs' shapes alone, and other
            tensors that it reads must be lasting: the same at each call, though what they hold may change.
        inputs: one call's arguments; a replay takes others of the same shapes and data types.
        lasting: whether a tensor that is no input may be kept and read again.

    Raises:
        Unrecordable: the function does otherwise.
    """

    def __init__(
        self,
        function: Callable[..., torch.Tensor],
        inputs: Sequence[torch.Tensor],
        lasting: Callable[[torch.Tensor], bool],
    ) -> None:
        recorder = _Recorder(inputs, lasting)
        with _Watch(), recorder:
            result = function(*inputs)
        if id(result) not in recorder.names:
            raise Unrecordable(f"it returns {type(result).__name__} that no operator made")
        body = "\n    ".join([*recorder.lines, f"return {recorder.names[id(result)]}"])
        code = f"def replay({', '.join(f'i{k}' for k in range(len(inputs)))}):\n    {body}\n"
        exec(compile(code, "<recorded forward>", "exec"), recorder.scope)
        self.replay: Callable[..., torch.Tensor] = recorder.scope["replay"]
        self.first = result
