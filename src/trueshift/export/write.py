"""Write a network as an ONNX file or as an exported program of torch."""

from __future__ import annotations

import os
import re
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.export import Dim

from trueshift._files import written_whole
from trueshift._validate import check_choice, check_map

FORMATS = ("onnx", "pt2")
DYNAMIC = ("batch", "size")
MAX_SIZE = 4096  # pixels along an axis up to which an exported graph breaks ties
_ATTEMPTS = 4
Range = tuple[int, int | None]


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
    ranges = _ranges(example, multiples, dynamic)
    _check_takes(model, example, multiples, dynamic)
    program, ranges = _trace(_OneInput(model), example, ranges, multiples)
    with written_whole(path) as partial:
        if form == "pt2":
            torch.export.save(program, partial)
        else:
            _write_onnx(_OneInput(model), example, _dims(ranges, multiples), partial)
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
    told = getattr(model, "required_multiple", 1)
    return tuple(told) if isinstance(told, Sequence) else (int(told),) * dim


def _ranges(
    example: Tensor, multiples: tuple[int, ...], dynamic: Sequence[str]
) -> dict[str, Range]:
    """Range of everything that may change, sizes in multiples."""
    found: dict[str, Range] = {}
    if "batch" in dynamic:
        if len(example) < 2:
            raise ValueError("export: a dynamic batch needs an example of at least 2 images.")
        found["batch"] = (1, None)
    if "size" in dynamic:
        for axis, multiple in enumerate(multiples):
            found[f"size{axis}"] = (1, MAX_SIZE // multiple)
    return found


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


def _dims(ranges: dict[str, Range], multiples: tuple[int, ...]) -> dict[str, Any]:
    """Write ranges as torch.export wants them."""
    dims: dict[int, Any] = {}
    for name, (low, high) in ranges.items():
        dim: Any = Dim(name, min=low, max=high)
        axis = _axis(name)
        factor = (1, 1, *multiples)[axis]
        dims[axis] = dim if factor == 1 else factor * dim
    return {"x": dims}


def _axis(name: str) -> int:
    """Return which axis of the input a range is about."""
    return 0 if name == "batch" else int(name.removeprefix("size")) + 2


def _trace(
    model: nn.Module, example: Tensor, ranges: dict[str, Range], multiples: tuple[int, ...]
) -> tuple[torch.export.ExportedProgram, dict[str, Range]]:
    """Trace, with ranges narrowed to what one graph can serve."""
    for _ in range(_ATTEMPTS):
        try:
            shapes = _dims(ranges, multiples)
            program = torch.export.export(model, (example,), dynamic_shapes=shapes)
        except Exception as error:  # torch raises many kinds, and the network may raise its own
            narrower = _narrower(str(error), ranges)
            if narrower == ranges:
                raise ValueError(f"export: torch cannot trace the network. {error}") from error
            ranges = narrower
            continue
        served = _served(program.module(), example, ranges, multiples)
        if served == ranges:
            return program, ranges
        ranges = served
    raise ValueError("export: found no range of sizes that one graph serves. Leave out 'size'.")


def _served(
    program: nn.Module, example: Tensor, ranges: dict[str, Range], multiples: tuple[int, ...]
) -> dict[str, Range]:
    """Leave out what a program refuses when it runs: ones are special to torch, in sizes of maps.

    Its refusals name an axis of the input, and it is asked with the smallest input that is left.
    """
    factors = (1, 1, *multiples)
    axes = {name: _axis(name) for name in ranges}
    for _ in range(_ATTEMPTS):
        shape = list(example.shape)
        for name, (low, _) in ranges.items():
            shape[axes[name]] = low * factors[axes[name]]
        try:
            with torch.no_grad():
                program(example.new_zeros(shape))
            break
        except AssertionError as error:
            named = set(map(int, re.findall(r"\.size\(\)\[(\d+)\]", str(error))))
            if "Guard failed" not in str(error) or named.isdisjoint(axes.values()):
                raise
        ranges = {name: (low + (axes[name] in named), high) for name, (low, high) in ranges.items()}
    return ranges


def _narrower(message: str, ranges: dict[str, Range]) -> dict[str, Range]:
    """Read what torch suggests; raise where it wants a fixed number."""
    found = dict(ranges)
    for name, low, high, rest in _suggestions(message):
        if name not in ranges:
            continue
        if rest is not None:
            what = "batch" if name == "batch" else "size"
            raise ValueError(
                f"export: the {what} of this network cannot change from call to call: torch says"
                f" {name} = {rest}. Leave out {what!r} in dynamic (--dynamic)."
            )
        known = found[name]
        found[name] = (int(low or known[0]), int(high) if high else known[1])
    return found


def _suggestions(message: str) -> Iterator[tuple[str, str | None, str | None, str | None]]:
    _, _, fixes = message.partition("Suggested fixes:")
    for line in fixes.splitlines():
        name, equals, value = line.strip().partition(" = ")
        if not equals:
            continue
        if not value.startswith("Dim("):
            yield name, None, None, value
            continue
        low, high = re.search(r"min=(\d+)", value), re.search(r"max=(\d+)", value)
        yield name, low and low[1], high and high[1], None


def _write_onnx(model: nn.Module, example: Tensor, shapes: dict[str, Any], path: Path) -> None:
    try:
        import onnxscript  # noqa: F401
    except ImportError as error:
        message = 'export to ONNX needs onnx and onnxscript: pip install "trueshift[export]".'
        raise ImportError(message) from error
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the exporter's own affairs
        # The program that was traced does not serve: it looks at bits, which ONNX cannot.
        program: Any = torch.onnx.export(
            model,
            (example,),
            dynamo=True,
            dynamic_shapes=shapes,
            verbose=False,
            input_names=["x"],
        )
        program.save(path)
