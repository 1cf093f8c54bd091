"""Test a trained body in bfloat16, with phases chosen by several rules."""

from __future__ import annotations

from concurrent.futures import Executor

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.record.body import Body
from benchmarks.record.learn import Chooser, normalize


class Evaluation:
    """Runs a body on test images, in parts of 250 that go to the threads of ``pool``."""

    def __init__(self, net: Body, images: Tensor, labels: Tensor, pool: Executor) -> None:
        self.net, self.images, self.labels, self.pool = net.eval(), images, labels, pool

    @torch.no_grad()
    def _part(self, i: Tensor, seed: int, rule: str, shifted: bool, flip: bool):
        generator = torch.Generator().manual_seed(seed)
        x = normalize(self.images[i])
        if shifted:
            shift = torch.randint(32, (2, len(i)), generator=generator).T.tolist()
            x = torch.stack([a.roll(s, (1, 2)) for a, s in zip(x, shift, strict=True)])
        x = (x.flip(3) if flip else x).contiguous(memory_format=torch.channels_last)
        log: list[Tensor | None] = []
        return self.net(x, Chooser(rule, 1.0, generator), None, log), log

    def run(self, rule: str, shifted: bool = False, flip: bool = False):
        """Return the outputs ``(N, 10)`` and the phases of each stage, if any are chosen."""
        parts = enumerate(torch.arange(len(self.images)).split(250))
        jobs = [self.pool.submit(self._part, i, 7000 + n, rule, shifted, flip) for n, i in parts]
        outs, logs = zip(*(job.result() for job in jobs), strict=True)
        chosen = logs[0][0] is not None
        phases = [torch.cat(p) for p in zip(*logs, strict=True)] if chosen else []
        return torch.cat(outs), phases

    def accuracy(self, out: Tensor) -> float:
        """Return the percentage of images whose label is that of the largest output."""
        return round(100 * float((out.argmax(1) == self.labels).float().mean()), 2)

    @torch.no_grad()
    def logits(self) -> list[list[float]]:
        """Return by stage how far logits differ, and the mean probability of the largest one."""
        y, rows = self.net.begin(normalize(self.images[:1000])), []
        for k, selector in enumerate(self.net.selectors):
            logits = selector(y)
            largest = logits.softmax(1).amax(1).mean()
            rows.append([round(float(logits.std(1).mean()), 4), round(float(largest), 3)])
            y = self.net.stage(k, y, logits.argmax(1), None, False, None)
        return rows


def evaluate(evaluation: Evaluation, rule: str, modes: list[str]) -> dict:
    """Return the numbers of each mode.

    Args:
        evaluation: What to test.
        rule: How phases are chosen at test time.
        modes: ``"own"`` (``rule``), ``"shifted"`` (each image shifted circularly), ``"flips"``
            (the mean with the mirrored image), ``"logits"``, or another rule.
    """
    result: dict = {}
    for mode in modes:
        if mode == "own":
            out, phases = evaluation.run(rule)
            result["own"] = evaluation.accuracy(out)
            result["loss"] = round(float(F.cross_entropy(out, evaluation.labels)), 4)
            shares = [p.bincount(minlength=4) / len(p) for p in phases]
            result["used"] = [[round(float(v), 3) for v in share] for share in shares]
        elif mode == "shifted":
            result["shifted"] = evaluation.accuracy(evaluation.run(rule, shifted=True)[0])
        elif mode == "flips":
            sides = [evaluation.run(rule, flip=flip)[0].softmax(1) for flip in (False, True)]
            result["flips"] = evaluation.accuracy(sides[0] + sides[1])
        elif mode == "logits":
            result["logit_std_and_agreement"] = evaluation.logits()
        else:
            result[mode] = evaluation.accuracy(evaluation.run(mode)[0])
    return result
