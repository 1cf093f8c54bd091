"""How far two predictions agree, as pure functions of tensors."""

from __future__ import annotations

from statistics import NormalDist

import torch
from torch import Tensor

IGNORE_INDEX = 255


def predicted_labels(preds: Tensor, spatial: int = 0) -> Tensor:
    """Return labels: the largest logit along the class axis, or the labels that were given.

    Args:
        preds: Floating logits ``(B, C, *spatial)`` or integer labels ``(B, *spatial)``.
        spatial: Number of spatial axes: 0 for classifiers, 2 for masks.

    Returns:
        Labels ``(B, *spatial)``, int64.

    Examples:
        >>> predicted_labels(torch.tensor([[0.1, 0.7, 0.2]]))
        tensor([1])
    """
    names = ("B", "C", "H", "W")[: 2 + spatial]
    rule = (
        f"consistency: predictions must be floating logits ({', '.join(names)}) or integer labels"
        f" ({', '.join(('B', *names[2:]))})"
    )
    if not isinstance(preds, Tensor):
        raise TypeError(f"{rule}, got {type(preds).__name__}. Wrap the model to return a tensor.")
    if preds.dtype.is_floating_point:
        if preds.ndim != 2 + spatial:
            raise ValueError(f"{rule}, got {preds.dtype} of shape {tuple(preds.shape)}.")
        if preds.isnan().any():  # argmax would call them all the same label
            raise ValueError(
                "consistency: the logits hold NaN. The network is broken or overflows."
            )
        return preds.argmax(1)
    if preds.ndim != 1 + spatial or preds.dtype == torch.bool or preds.dtype.is_complex:
        raise ValueError(f"{rule}, got {preds.dtype} of shape {tuple(preds.shape)}.")
    return preds.long()


def agreement(
    labels_a: Tensor, labels_b: Tensor, where: Tensor | None = None
) -> tuple[Tensor, Tensor]:
    """Share of equal labels of each image, over the places that count.

    Args:
        labels_a: Integer labels ``(B, *spatial)``.
        labels_b: The same for the other shift, already unshifted.
        where: Boolean ``(B, *spatial)``: the places that count; all by default.

    Returns:
        Shares ``(B,)``, float64, 0 where nothing counts; and boolean ``(B,)``: something counts.

    Examples:
        >>> a, b = torch.tensor([[1, 2, 3, 3]]), torch.tensor([[1, 2, 0, 0]])
        >>> agreement(a, b, where=a < 3)
        (tensor([1.], dtype=torch.float64), tensor([True]))
    """
    if labels_a.shape != labels_b.shape:
        raise ValueError(
            "agreement: both predictions must have the same shape, got"
            f" {tuple(labels_a.shape)} and {tuple(labels_b.shape)}."
        )
    where = torch.ones_like(labels_a, dtype=torch.bool) if where is None else where
    same = ((labels_a == labels_b) & where)[:, None].flatten(1).sum(1)
    count = where[:, None].flatten(1).sum(1)
    return same.double() / count.clamp(min=1), count > 0


def wilson_interval(fraction: float, num: int, confidence: float = 0.95) -> tuple[float, float]:
    """Confidence interval of a fraction (Wilson 1927): honest near 0 and 1 and for few samples.

    Args:
        fraction: Observed fraction in [0, 1].
        num: Number of independent samples.
        confidence: Wanted coverage, in (0, 1).

    Returns:
        Lower and upper end, within [0, 1]; ``(0, 1)`` without samples.

    Examples:
        >>> low, high = wilson_interval(1.0, 100)
        >>> round(low, 3), high
        (0.963, 1.0)
    """
    if not 0 < confidence < 1:
        raise ValueError(f"wilson_interval: confidence must be in (0, 1), got {confidence}.")
    if num == 0:
        return 0.0, 1.0
    z = NormalDist().inv_cdf((1 + confidence) / 2)
    centre = fraction + z * z / (2 * num)
    radius = z * (fraction * (1 - fraction) / num + z * z / (4 * num * num)) ** 0.5
    scale = 1 + z * z / num
    low = 0.0 if fraction <= 0 else (centre - radius) / scale
    high = 1.0 if fraction >= 1 else (centre + radius) / scale
    return max(low, 0.0), min(high, 1.0)
