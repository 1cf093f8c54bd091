"""ONNX files as modules, run by onnxruntime."""

from __future__ import annotations

import os
from pathlib import Path

from trueshift.anchor.networks import Session


def load_onnx(path: str | os.PathLike[str]) -> Session:
    """Load an ONNX file as a module that :func:`audit` takes.

    Args:
        path: The file, with one input of images ``(B, C, H, W)``.

    Returns:
        The module. It runs on the CPU and has no modules inside.
    """
    try:
        import onnxruntime
    except ImportError as error:
        message = 'load_onnx needs onnxruntime: pip install "trueshift[export]".'
        raise ImportError(message) from error
    path = Path(path)
    if not path.is_file():
        raise FileNotFoundError(f"load_onnx: no file {path}.")
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    try:
        session = onnxruntime.InferenceSession(
            str(path), options, providers=["CPUExecutionProvider"]
        )
    except Exception as error:  # onnxruntime's errors share no other class
        raise ValueError(f"load_onnx: {path} cannot be read: {error}") from error
    return Session(session)
