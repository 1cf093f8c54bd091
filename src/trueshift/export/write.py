"""Write a network as an ONNX file or as an exported program of torch."""

from __future__ import annotations

import os
import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from trueshift._files import written_whole
from trueshift._validate import check_choice, check_map
from trueshift.export.trace import Range, full_ranges, quick_tracing, trace

FORMATS = ("onnx", "pt2")
DYNAMIC = ("batch", "size")


@dataclass(frozen=True)
class Exported:
    """A file that was written.

    Attributes:
        path: Where it is.
        form: ``"onnx"`` or ``"pt2"``.
        batch: Smallest and largest number of images it takes; no largest is ``None``.
        sizes: The same for each spatial axis, in pixels.
        multiples: Of what each size must be a multiple.
    """

    path: Path
    form: str
    batch: Range
    sizes: tuple[Range, ...]
    multiples: tuple[int, ...]


def export(
    model: nn.Module,
    example: Tensor,
    path: str | os.PathLike[str],
    form: str = "onnx",
    dynamic: Sequence[str] = DYNAMIC,
    *,
    force: bool = False,
    progress: Callable[[str], object] = lambda stage: None,
) -> Exported:
    """Write a network to a file that runs without this package.

    Some networks cannot take every size in one file, because their code branches on sizes (wide
    circular borders on small maps, for instance). The file then takes those sizes around that of
    the example for which the branch is the same; :class:`Exported` says which.

    Args:
        model: A network with one input, in eval mode on the CPU; see also ``required_multiple``.
        example: A batch ``(B, C, *spatial)``, at least two images if the batch is dynamic.
        path: File to write.
        form: ``"onnx"``, or ``"pt2"`` for a program that :func:`torch.export.load` reads.
        dynamic: What may change from call to call: ``"batch"``, ``"size"``, both or nothing.
        force: Replace a file that exists.
        progress: Called with what begins now: each stage takes a while.

    Returns:
        What was written.
    """
    check_choice("export", "format", form, FORMATS)
    check_map("export", example)
    for what in dynamic:
        check_choice("export", "dynamic", what, DYNAMIC)
    if model.training:
        raise ValueError("export: the network is in training mode. Call model.eval() first.")
    path = _free_path(Path(path), form, force)
    multiples = _multiples(model, example.ndim - 2)
    ranges = full_ranges(example, multiples, dynamic)
    _check_takes(model, example, multiples, dynamic)
    progress("tracing")
    program, ranges = trace(_OneInput(model), example, ranges, multiples)
    progress("translating to ONNX" if form == "onnx" else "writing")
    with written_whole(path) as partial:
        if form == "pt2":
            torch.export.save(program, partial)
        else:
            _write_onnx(program, partial)
    sizes = tuple(
        (one[0] * multiple, one[1] and one[1] * multiple)
        if (one := ranges.get(f"size{axis}"))
        else (example.shape[axis + 2],) * 2
        for axis, multiple in enumerate(multiples)
    )
    return Exported(path, form, ranges.get("batch", (len(example),) * 2), sizes, multiples)


def load(path: str | os.PathLike[str]) -> nn.Module:
    """Load an exported file as a module that runs it: onnxruntime for ONNX, torch for pt2."""
    path = Path(path)
    check_choice("export", "suffix", path.suffix.removeprefix("."), FORMATS)
    if path.suffix == ".onnx":
        from trueshift.audit.onnx import load_onnx

        return load_onnx(path)
    module: nn.Module = torch.export.load(path).module()
    return module


class _OneInput(nn.Module):
    """Give every network the same signature; a converted one takes any arguments."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model

    def forward(self, x: Tensor) -> Any:
        return self.model(x)


def _free_path(path: Path, form: str, force: bool) -> Path:
    if path.suffix != f".{form}":
        raise ValueError(f"export: a file of format {form} must end in .{form}, got {path}.")
    if path.exists() and not force:
        raise FileExistsError(f"export: {path} exists. Pass force=True (--force) to replace it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"export: no folder {path.parent} to write {path.name} to.")
    return path


def _multiples(model: nn.Module, dim: int) -> tuple[int, ...]:
    multiple = getattr(model, "required_multiple", 1)
    return tuple(multiple) if isinstance(multiple, Sequence) else (int(multiple),) * dim


def _check_takes(
    model: nn.Module, example: Tensor, multiples: tuple[int, ...], dynamic: Sequence[str]
) -> None:
    """Raise unless the network itself takes other batches and sizes; torch.export may not see."""
    batch, channels, *sizes = example.shape
    larger = [size + multiple for size, multiple in zip(sizes, multiples, strict=True)]
    for what, shape in (
        ("batch", (batch + 1, channels, *sizes)),
        ("size", (batch, channels, *larger)),
    ):
        if what not in dynamic:
            continue
        try:
            with torch.no_grad():
                model(example.new_zeros(shape))
        except Exception as error:  # a network may raise anything
            raise ValueError(
                f"export: the network does not take another {what}, here {tuple(shape)}: {error}"
                f" Leave out {what!r} in dynamic (--dynamic)."
            ) from error


def _write_onnx(program: ExportedProgram, path: Path) -> None:
    try:
        from onnxscript import optimizer
    except ImportError as error:
        message = 'export to ONNX needs onnx and onnxscript: pip install "trueshift[export]".'
        raise ImportError(message) from error
    with warnings.catch_warnings(), quick_tracing():
        warnings.simplefilter("ignore")  # about the exporter's own internals
        translated: Any = torch.onnx.export(
            program, dynamo=True, verbose=False, input_names=["x"], optimize=False
        )
        # One pass folds nearly all constants; a second and shapes of nodes take as long again.
        optimizer.optimize(translated.model, num_iterations=1, onnx_shape_inference=False)
        translated.save(path)
