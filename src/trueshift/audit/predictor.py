"""A network as a function from images to logits, and what the logits say."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

IGNORE = 255  # pixels without a label


class Predictor:
    """A model as a function from images to one tensor of logits.

    Args:
        model: The network, or any function of images.
        output: Which part of what it returns, if that is a dict or a tuple: a key or an index;
            dots go deeper.
    """

    def __init__(self, model: Callable[[Tensor], Any], output: str | int | None) -> None:
        self.model, self.output = model, output
        self.module = model if isinstance(model, nn.Module) else None
        state = [] if self.module is None else [*self.module.parameters(), *self.module.buffers()]
        floating = [t for t in state if t.is_floating_point()]
        self.device = state[0].device if state else torch.device("cpu")
        self.dtype = floating[0].dtype if floating else torch.float32

    def __call__(self, images: Tensor) -> Tensor:
        seen = images.to(self.device, self.dtype)
        try:
            logits = self._pick(self.model(seen))
        except (RuntimeError, AssertionError) as error:  # what torch and timm say of wrong shapes
            if isinstance(error, torch.OutOfMemoryError):
                raise MemoryError(
                    f"audit: not enough memory on {self.device} for {len(images)} images at once."
                    " Use a smaller batch_size."
                ) from error
            raise ValueError(
                f"audit: the network does not take images of shape {tuple(images.shape)}. Check"
                f" their channels and size. It says: {error}"
            ) from error
        if logits.ndim == 4 and logits.shape[2:].numel() == 1:
            logits = logits.flatten(1)
        masks = logits.ndim == 4 and logits.shape[2:] == images.shape[2:]
        if not logits.is_floating_point() or not (logits.ndim == 2 or masks):
            raise ValueError(
                "audit: the network must return logits (B, classes), or (B, classes, H, W) as large"
                f" as the images, got {logits.dtype} of shape {tuple(logits.shape)} for images of"
                f" shape {tuple(images.shape)}."
            )
        if not logits.isfinite().all():
            raise ValueError(
                "audit: the network's output holds NaN or infinity. Check its weights, and that"
                " the images are normalised as in training."
            )
        return logits

    def _pick(self, output: Any) -> Tensor:
        for part in [] if self.output is None else str(self.output).split("."):
            keys = _keys(output)
            if part not in keys:
                raise ValueError(
                    f"audit: the network's output has no part {part!r}. Choose output from:"
                    f" {', '.join(keys) or 'nothing, it is one tensor'}."
                )
            output = output[part] if isinstance(output, dict) else output[int(part)]
        if not isinstance(output, Tensor):
            names = ", ".join(_keys(output))
            hint = f" Choose one part by output= (--output KEY), from: {names}." if names else ""
            raise ValueError(
                f"audit: the network returns a {type(output).__name__}, not a tensor.{hint}"
            )
        return output


def labels_of(logits: Tensor) -> Tensor:
    """Return the label of the largest logit; one channel alone is a logit of yes or no."""
    return (logits[:, 0] > 0).long() if logits.shape[1] == 1 else logits.argmax(1)


def confidence_of(logits: Tensor) -> Tensor:
    """Return the probability of the label, ``(B,)``; for masks the mean over pixels."""
    logits = logits.float()
    one = logits.shape[1] == 1
    shares = logits[:, 0].abs().sigmoid() if one else logits.softmax(1).amax(1)
    return shares if shares.ndim == 1 else shares.flatten(1).mean(1)


@contextlib.contextmanager
def in_eval_mode(module: nn.Module | None) -> Iterator[None]:
    """Run a network in eval mode, without gradients; leave it as it was."""
    modules = [] if module is None else list(module.modules())
    modes = [one.training for one in modules]
    for one in modules:
        one.training = False
    try:
        with torch.no_grad():
            yield
    finally:
        for one, mode in zip(modules, modes, strict=True):
            one.training = mode


def _keys(output: Any) -> list[str]:
    if isinstance(output, dict):
        return [str(key) for key in output]
    return [str(i) for i in range(len(output))] if isinstance(output, tuple | list) else []
