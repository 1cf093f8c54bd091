"""ONNX files as modules, run by onnxruntime."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class OnnxModel(nn.Module):
    """A network in an ONNX file with one input, on the CPU.

    Args:
        path: The file.

    Shape:
        Whatever the file takes. A file for a fixed batch is called as often as needed. One output
        is returned as a tensor, several as a dict by name.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        super().__init__()
        runtime = _onnxruntime()
        path = Path(path)
        if not path.is_file():
            raise FileNotFoundError(f"load_onnx: no file {path}.")
        options = runtime.SessionOptions()
        options.log_severity_level = 3
        try:
            self.session = runtime.InferenceSession(
                str(path), options, providers=["CPUExecutionProvider"]
            )
        except Exception as error:  # onnxruntime's errors share no other class
            raise ValueError(f"load_onnx: {path} cannot be read: {error}") from error
        inputs = self.session.get_inputs()
        if len(inputs) != 1:
            names = ", ".join(one.name for one in inputs)
            raise ValueError(f"load_onnx: {path} must have one input, got {len(inputs)}: {names}.")
        self.input_name, self.input_shape = inputs[0].name, tuple(inputs[0].shape)
        self.output_names = [one.name for one in self.session.get_outputs()]

    def forward(self, x: Tensor) -> Tensor | dict[str, Tensor]:
        fixed = self.input_shape[0] if isinstance(self.input_shape[0], int) else len(x)
        parts = [self._run(part, fixed) for part in x.split(fixed)]
        outputs = [torch.cat(one) for one in zip(*parts, strict=True)]
        named = dict(zip(self.output_names, outputs, strict=True))
        return outputs[0] if len(outputs) == 1 else named

    def _run(self, x: Tensor, batch: int) -> list[Tensor]:
        missing = batch - len(x)
        full = F.pad(x, (0,) * (2 * x.ndim - 1) + (missing,)) if missing else x
        try:
            outputs = self.session.run(None, {self.input_name: full.cpu().contiguous().numpy()})
        except Exception as error:  # onnxruntime's errors share no other class
            raise ValueError(
                f"load_onnx: the network takes {self.input_shape}, got {tuple(full.shape)}: {error}"
            ) from error
        return [torch.from_numpy(one)[: len(x)] for one in outputs]


def load_onnx(path: str | os.PathLike[str]) -> OnnxModel:
    """Load an ONNX file as a module that :func:`audit` takes.

    Args:
        path: The file, with one input of images ``(B, C, H, W)``.

    Returns:
        The module. It runs on the CPU and has no modules inside.
    """
    return OnnxModel(path)


def _onnxruntime() -> Any:
    try:
        import onnxruntime
    except ImportError as error:
        message = 'load_onnx needs onnxruntime: pip install "trueshift[export]".'
        raise ImportError(message) from error
    return onnxruntime
