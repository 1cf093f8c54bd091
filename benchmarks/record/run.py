"""A run: the training loop, its checkpoint and its result."""

from __future__ import annotations

import json
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from torch import Tensor
from torch.nn import functional as F

from benchmarks.record.body import Body
from benchmarks.record.evaluate import Evaluation, evaluate
from benchmarks.record.learn import LEARNED, Chooser, Optimizer, auxiliary_loss, cut, normalize
from trueshift.data.cifar10 import load_cifar10


def build(config: dict) -> Body:
    """Build the body that the options describe."""
    widths, residual = ([int(n) for n in config[key].split(",")] for key in ("widths", "residual"))
    return Body(widths, residual, config["stem"], config["hidden"], bool(config["calibrate"]))


def load_body(path: str) -> tuple[Body, dict]:
    """Return the body of a checkpoint, averaged if it was trained so, and its options."""
    state = torch.load(path, weights_only=True)
    net = build(state["config"])
    net.load_state_dict(state["average"] or state["net"])
    return net.eval(), state["config"]


def append_line(folder: Path, line: dict) -> None:
    """Print a result and append it to the file of results next to the run folder."""
    with (folder.resolve().parent / "RUNS.jsonl").open("a") as file:
        file.write(json.dumps(line) + "\n")
    print(json.dumps(line), flush=True)


class Run:
    """A training: its network, optimizer and progress, all of which the checkpoint keeps."""

    def __init__(self, config: dict) -> None:
        torch.manual_seed(config["seed"])
        self.config, self.folder = config, Path(config["folder"])
        self.data = load_cifar10(config["data"])
        self.images = self.data.train_images[: config["images"]]
        self.labels = self.data.train_labels[: config["images"]]
        self.net = build(config)
        self.net.whiten(normalize(self.images[:2000]))
        self.optimizer = Optimizer(self.net, config)
        self.params = [p for p in self.net.parameters() if p.requires_grad]
        self.average = None
        if config["ema"]:
            self.average = {n: v.clone() for n, v in self.net.state_dict().items()}
        self.epoch, self.first, self.right = 0, 0, 0
        self.losses: list[float] = []
        self.history: list[tuple] = []
        self.spent = self.saved = 0.0
        self.pool = ThreadPoolExecutor(config["workers"])
        coin = torch.Generator().manual_seed(config["seed"])
        self.parity = torch.randint(2, (len(self.images),), generator=coin)
        self.folder.mkdir(parents=True, exist_ok=True)
        self.path = self.folder / f"{config['name']}.pt"
        if self.path.exists():
            self.load()
        self.clock = time.process_time()

    def load(self) -> None:
        """Continue from the checkpoint."""
        state = torch.load(self.path, weights_only=True)
        self.net.load_state_dict(state["net"])
        self.optimizer.load(state["optimizer"])
        self.epoch, self.first, self.right = state["epoch"], state["step"], state["right"]
        self.losses, self.history, self.average = (
            state[key] for key in ("losses", "history", "average")
        )
        self.spent = self.saved = state["cpu"]
        where = f"epoch {self.epoch} step {self.first} after {self.spent:.0f} CPU s"
        print("resumed at", where, flush=True)

    def save(self, step: int) -> None:
        """Write the checkpoint, whole or not at all; ``step`` is the next one of this epoch."""
        state = dict(net=self.net.state_dict(), optimizer=self.optimizer.state())
        state |= dict(epoch=self.epoch, step=step, cpu=self.spent, losses=self.losses)
        state |= dict(right=self.right, history=self.history, average=self.average)
        part = self.path.with_suffix(".part")
        torch.save(state | dict(config=self.config), part)
        part.replace(self.path)
        self.saved = self.spent

    def micro(self, i: Tensor, flip: Tensor, seed: int, tau: float, number: int):
        """Return gradients, batch statistics, loss and right answers of a micro-batch."""
        config, t = self.config, self.labels[i]
        generator = torch.Generator().manual_seed(seed)
        x = normalize(self.images[i])
        x = torch.where(flip[:, None, None, None], x.flip(3), x)
        x = x.contiguous(memory_format=torch.channels_last)
        if config["cutout"]:
            x = cut(x, config["cutout"], generator).contiguous(memory_format=torch.channels_last)
        learns = number % config["aux_every"] == 0  # selectors learn from some micro-batches
        chooser, stats = Chooser(config["rule"], tau, generator, learns), []
        out = self.net(x, chooser, stats)
        main = F.cross_entropy(out, t, label_smoothing=config["smoothing"])
        loss = main
        if config["rule"] == "info" and learns:
            loss = loss + auxiliary_loss(self.net, x, t, chooser, config["aux_scale"])
        grads = torch.autograd.grad(loss, self.params, allow_unused=True)
        return grads, stats, float(main.detach()), int((out.argmax(1) == t).sum())

    def step(self, indices: Tensor, flips: Tensor, done: int, total: int) -> None:
        """Train on one batch, the ``done``-th of ``total``."""
        config = self.config
        rise = done / max(1, config["warmup"] * total)
        fall = (1 - done / total) / (1 - config["warmup"])
        rate = min(rise + 0.02, max(fall, config["final"]), 1.0)
        tau0, tau1 = map(float, config["tau"].split(","))
        tau = tau0 * (tau1 / tau0) ** (done / total)
        parts, seed = indices.split(config["micro"]), (config["seed"] << 40) + done * 64
        jobs = [
            self.pool.submit(self.micro, i, flips[i], seed + n, tau, done * len(parts) + n)
            for n, i in enumerate(parts)
        ]
        grads, stats, losses, right = zip(*(job.result() for job in jobs), strict=True)
        for p, candidates in zip(self.params, zip(*grads, strict=True), strict=True):
            own = [g for g in candidates if g is not None]
            p.grad = sum(own[1:], own[0]) / len(own) if own else None
        for conv, mean, var in (row for rows in stats for row in rows):
            conv.mean.lerp_(mean, 0.1)
            conv.var.lerp_(var, 0.1)
        self.optimizer.step(rate, self.epoch < config["bias_epochs"])
        if self.average is not None:
            decay = min(config["ema"], (1 + done) / (10 + done))
            for name, value in self.net.state_dict().items():
                self.average[name].lerp_(value, 1 - decay)
        self.losses += losses
        self.right += sum(right)

    def one_epoch(self) -> None:
        """Train for the rest of an epoch, with a checkpoint every ``save_every`` CPU seconds."""
        config, num = self.config, len(self.images)
        self.net.train()
        generator = torch.Generator().manual_seed(1000 * config["seed"] + self.epoch)
        order = torch.randperm(num, generator=generator)
        flips = (self.parity + self.epoch) % 2 == 1
        if config["flip"] == "random":
            flips = torch.rand(num, generator=generator) < 0.5
        size, per_epoch = config["batch"], num // config["batch"]
        for step in range(self.first, per_epoch):
            indices = order[step * size : (step + 1) * size]
            done = self.epoch * per_epoch + step
            self.step(indices, flips, done, per_epoch * config["epochs"])
            now = time.process_time()
            self.spent, self.clock = self.spent + now - self.clock, now
            if self.spent - self.saved > config["save_every"]:
                self.save(step + 1)
                self.report(self.epoch, f"step {step + 1}/{per_epoch}", self.mean_loss())
        self.epoch += 1
        right = round(self.right / per_epoch / size, 4)
        self.history.append((self.epoch, self.mean_loss(), right))
        self.first, self.losses, self.right = 0, [], 0
        self.save(0)
        self.report(*self.history[-1])

    def mean_loss(self) -> float:
        """Return the mean loss of the epoch so far."""
        return round(sum(self.losses) / len(self.losses), 4)

    def report(self, *values: object) -> None:
        """Print progress."""
        when = time.strftime("%H:%M:%S")
        print(self.config["name"], *values, f"{self.spent:.0f} CPU s", when, flush=True)

    def finish(self) -> None:
        """Evaluate, and append the result to RUNS.jsonl."""
        config = self.config
        if self.average is not None:
            self.net.load_state_dict(self.average)
        images, labels = (
            part[: config["eval_images"]] for part in (self.data.test_images, self.data.test_labels)
        )
        learned = config["rule"] in LEARNED
        modes = config["modes"].split(",")
        modes += ["logits"] if learned and "logits" not in modes else []
        evaluation = Evaluation(self.net, images, labels, self.pool)
        result = evaluate(evaluation, "argmax" if learned else config["rule"], modes)
        line = dict(config=config, cpu_seconds=round(self.spent), train=self.history[-1], **result)
        append_line(self.folder, line | dict(when=time.strftime("%Y-%m-%dT%H:%M:%S")))
