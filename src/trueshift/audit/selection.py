"""Whether learned selectors choose, and what their choice is worth (paper section 5.3)."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from trueshift.audit.predictor import IGNORE, Predictor, in_eval_mode, labels_of
from trueshift.audit.probes import Seen, learned_layers, logits_of, observe_choices
from trueshift.audit.swaps import RandomSelector, averaged_over_phases, with_other_choices
from trueshift.layers.selectors import NormSelector

_ABOVE_NOISE = 0.05  # of the way from chance to certainty


def at_chance(agreement: float, num_phases: int) -> bool:
    """Whether no more noisy draws agree with a selector than with any fixed component."""
    chance = 1 / num_phases
    return agreement - chance < _ABOVE_NOISE * (1 - chance)


def expected_agreement(logits: Tensor) -> float:
    """Return the share of Gumbel draws that keep the largest of the logits ``(B, P)``."""
    return float(logits.softmax(1).amax(1).mean())


def entropy_of_choices(phases: Tensor) -> float:
    """Return the entropy in bits of choices ``(B,)``."""
    shares = phases.bincount().double() / len(phases)
    return float(-torch.special.xlogy(shares, shares).sum() / math.log(2)) + 0.0


@dataclass(frozen=True)
class Outcome:
    """What a network answers with other choices than its own.

    Attributes:
        accuracy: Share of right labels, of images or pixels; None without labels.
        unchanged: Share of images or pixels that keep the label which the network itself gives.
    """

    accuracy: float | None
    unchanged: float


@dataclass(frozen=True)
class LayerSelection:
    """How one learned selector chooses among ``P`` components.

    Attributes:
        name: The layer.
        num_phases: ``P``.
        entropy: Of its choices over the images, in bits; at most ``log2(P)``.
        gap: Mean difference of the two largest logits.
        agreement: Expected share of Gumbel draws, as in training, that choose the component of the
            largest logit: the mean of its softmax. ``1 / P`` is chance. The temperature has no
            effect: it does not change which component wins.
        same_as_norm: Share of images for which APS would keep the same component.
        averaged: With outputs averaged over the phases of this layer, if that was measured.
    """

    name: str
    num_phases: int
    entropy: float
    gap: float
    agreement: float
    same_as_norm: float
    averaged: Outcome | None

    @property
    def at_chance(self) -> bool:
        """Whether the noise of training drowns the logits."""
        return at_chance(self.agreement, self.num_phases)


@dataclass(frozen=True)
class Selection:
    """What the learned selectors of a network do, and what the network answers without them.

    Attributes:
        num_images: How many images.
        layers: The layers with a learned selector, in the network's order.
        accuracy: Of the network as it is; None without labels.
        norm: With every learned selector replaced by that of APS.
        random: With random choices, once for each draw.
        averaged: With outputs averaged over these draws; None without draws.
        gain: Accuracy above that of random choices; None without labels or draws.
        gain_error: Standard error of ``gain`` over the images, which are paired.
    """

    num_images: int
    layers: tuple[LayerSelection, ...]
    accuracy: float | None
    norm: Outcome
    random: tuple[Outcome, ...]
    averaged: Outcome | None
    gain: float | None
    gain_error: float | None

    def mean(self, field: str) -> float:
        """Return the mean of a number of :class:`LayerSelection` over all layers."""
        return sum(float(getattr(layer, field)) for layer in self.layers) / len(self.layers)


def diagnose_selectors(
    model: Callable[[Tensor], Any],
    batches: Iterable[tuple[Tensor, Tensor | None]],
    draws: int = 4,
    *,
    phases: bool = False,
    seed: int = 0,
    output: str | int | None = None,
) -> Selection:
    """Measure whether learned selectors choose, and what other choices would cost.

    Every batch is run ``2 + draws`` times: as it is, with the choices of APS, with random ones.

    Args:
        model: A classifier or segmenter with learned selectors; left as it is.
        batches: Images ``(B, C, H, W)`` and labels ``(B,)``, masks ``(B, H, W)`` or None.
        draws: How often to choose at random.
        phases: Also average the outputs over the phases of one layer at a time, which takes a run
            for each phase of each layer.
        seed: Seed of the random choices.
        output: Key or index of the logits in a dict or tuple; dots go deeper.
    """
    if draws < 0:
        raise ValueError(f"diagnose_selectors: draws must be at least 0, got {draws}.")
    network = Predictor(model, output)
    layers = {} if network.module is None else learned_layers(network.module)
    if not layers:
        raise ValueError("diagnose_selectors: the network has no learned selector to diagnose.")
    selectors = [RandomSelector(seed + k) for k in range(draws)]
    choices = {name: _Choices() for name in layers}
    scores: dict[str, list[Tensor]] = defaultdict(list)
    with in_eval_mode(network.module):
        for images, labels in batches:
            with observe_choices(layers, lambda name, seen: choices[name].add(layers[name], seen)):
                own = network(images)
            scores["own"].append(_score(own, own, labels))
            for key, logits in with_other_choices(network, images, layers, selectors):
                scores[key].append(_score(logits, own, labels))
            for name in (name for name in layers if phases and choices[name].logits):
                num_phases = choices[name].num_phases
                logits = averaged_over_phases(network, images, layers[name], num_phases)
                scores[f"phases of {name}"].append(_score(logits, own, labels))
    choices = {name: one for name, one in choices.items() if one.logits}  # layers that ran
    if not choices:
        raise ValueError(
            "diagnose_selectors: no learned selector chose for these images, or there were none."
        )
    return _selection(choices, {key: torch.cat(parts) for key, parts in scores.items()}, draws)


class _Choices:
    """Logits and choices of one selector, batch after batch."""

    def __init__(self) -> None:
        self.logits: list[Tensor] = []
        self.phases: list[Tensor] = []
        self.same: list[Tensor] = []
        self.norm = NormSelector(2).eval()

    def add(self, layer: nn.Module, seen: Seen) -> None:
        phase = seen.phase.argmax(1) if seen.phase.is_floating_point() else seen.phase
        self.logits.append(logits_of(layer.selector, seen.x, seen.stride))
        self.phases.append(phase.cpu())
        self.same.append((phase == self.norm.choose(seen.sampled, seen.stride)).double().cpu())

    @property
    def num_phases(self) -> int:
        return self.logits[0].shape[1]

    def result(self, name: str, averaged: Outcome | None) -> LayerSelection:
        logits = torch.cat(self.logits)
        best, second = logits.topk(2).values.unbind(1)
        return LayerSelection(
            name=name,
            num_phases=self.num_phases,
            entropy=entropy_of_choices(torch.cat(self.phases)),
            gap=float((best - second).mean()),
            agreement=expected_agreement(logits),
            same_as_norm=float(torch.cat(self.same).mean()),
            averaged=averaged,
        )


def _score(logits: Tensor, own: Tensor, labels: Tensor | None) -> Tensor:
    """Return for every image the shares of labels that are right, that count, that are its own."""
    answer = labels_of(logits)
    right = counted = torch.zeros_like(answer, dtype=torch.bool)
    if labels is not None:
        target = labels.to(answer.device)
        if target.shape != answer.shape:
            raise ValueError(
                f"diagnose_selectors: labels must have shape {tuple(answer.shape)} for this"
                f" network, got {tuple(target.shape)}."
            )
        counted = (target != IGNORE) | (answer.ndim == 1)
        right = (answer == target) & counted
    parts = (right, counted, answer == labels_of(own))
    return torch.stack([part.double().view(len(part), -1).mean(1) for part in parts], 1).cpu()


def _outcome(score: Tensor) -> Outcome:
    right, counted, unchanged = score.mean(0).tolist()
    return Outcome(right / counted if counted else None, unchanged)


def _selection(choices: dict[str, _Choices], scores: dict[str, Tensor], draws: int) -> Selection:
    outcomes = {key: _outcome(score) for key, score in scores.items()}
    accuracy, gain, error = outcomes["own"].accuracy, None, None
    if accuracy is not None and draws:
        right = {key: score[:, 0] / score[:, 1].clamp(min=1) for key, score in scores.items()}
        gains = right["own"] - sum(right[f"random {k}"] for k in range(draws)) / draws
        gain, error = float(gains.mean()), float(gains.std(correction=0)) / math.sqrt(len(gains))
    return Selection(
        num_images=len(scores["own"]),
        layers=tuple(
            one.result(name, outcomes.get(f"phases of {name}")) for name, one in choices.items()
        ),
        accuracy=accuracy,
        norm=outcomes["norm"],
        random=tuple(outcomes[f"random {k}"] for k in range(draws)),
        averaged=outcomes.get("random, averaged"),
        gain=gain,
        gain_error=error,
    )
