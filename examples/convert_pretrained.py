"""Make a pretrained classifier exactly shift-invariant in one line, and measure what it costs.

Without arguments a small ResNet with random weights stands in for the pretrained network::

    python examples/convert_pretrained.py

With weights and images (one folder per class, named by its number) it is MobileNetV2. Photos
without labels teach the converted network to see what the original sees::

    python examples/convert_pretrained.py --weights mobilenet_v2.pth --images imagenet_val
        --tuning-images VOC2012/JPEGImages --save tuned
"""

import argparse
import functools
import json
import statistics
from collections import OrderedDict
from pathlib import Path

import torch
from torch import Tensor, nn

import trueshift as ts
from trueshift.bench.meters import medians
from trueshift.convert import Converted, convert
from trueshift.data import IMAGENET_MEAN, IMAGENET_STD

SPLIT = 7  # MobileNetV2's blocks before this one keep their weights: a crop passes them once
APS = ts.Sampling("aps", select_from="input")
LPS = ts.Sampling("lps", select_from="input", train_rule="straight")
# How networks are converted, which parameters learn, and for which share of the steps.
TUNED = {
    "lps, seam, selectors tuned": (LPS, "seam", "sampling.", 0.5),
    "aps, seam, distilled": (APS, "seam", "", 1.0),
    "aps, circular, distilled": (APS, "circular", "", 1.0),
}


class SmallResNet(nn.Module):
    """Two strides on the way down, a residual branch that must follow, ten classes."""

    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 16, 3, 2, 1), nn.BatchNorm2d(16), nn.ReLU())
        self.main = nn.Sequential(nn.Conv2d(16, 32, 3, 2, 1), nn.ReLU(), nn.Conv2d(32, 32, 3, 1, 1))
        self.short = nn.Conv2d(16, 32, 1, 2)
        self.head = nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.stem(x)
        return self.head((self.main(x) + self.short(x)).relu().mean((2, 3)))


def main() -> float:
    """Convert the stand-in; print and return the largest difference over circular shifts."""
    torch.manual_seed(0)
    images = torch.rand(1, 3, 16, 12)
    model = convert(SmallResNet().eval(), "aps", images)
    print(model.plan)
    height, width = images.shape[2:]
    shifts = [(dy, dx) for dy in range(height) for dx in range(width)]
    with torch.inference_mode():
        logits = model(images)
        moved = [model(ts.shifts.circular_shift(images, *shift)) for shift in shifts]
    difference = max((other - logits).abs().max().item() for other in moved)
    print(f"largest difference over all {len(shifts)} shifts: {difference}")
    return difference


def measure(options: argparse.Namespace) -> dict[str, dict[str, float]]:
    """Print and return accuracy, consistency, time and FLOPs of MobileNetV2 and conversions."""
    if options.save:
        options.save.mkdir(parents=True, exist_ok=True)
    original = read_network(options.weights)
    images, labels = read_images(options.images)
    nets = networks(original, images[:1, :, 16:240, 16:240])
    if options.tuning_images:
        photos = [read_photo(path) for path in sorted(options.tuning_images.glob("*.jpg"))]
        for name in TUNED:
            nets[name] = tuned(original, name, photos, options.steps, options.save)
    rows = {}
    for name, net in nets.items():
        rows[name] = evaluate(net, images, labels)
        print(f"{name:27}", rows[name], flush=True)
    for name, times in clock(nets, images[:8, :, 16:240, 16:240]).items():
        rows[name] |= times
    print(f"{'network':27} top-1  circular  standard  time   FLOPs")
    for name, row in rows.items():
        shares = f"{row['top1']:5.3f}  {row['circular']:8.3f}  {row['standard']:8.3f}"
        print(f"{name:27} {shares}  {row['time']:4.2f}x  {row['flops']:4.2f}x")
    if options.save:
        (options.save / "results.json").write_text(json.dumps(rows, indent=2) + "\n")
    return rows


def read_network(weights: Path) -> nn.Module:
    """Return torchvision's MobileNetV2 with the weights of a file."""
    from trueshift._torchvision import import_torchvision

    import_torchvision()
    from torchvision.models import mobilenet_v2

    original = mobilenet_v2(weights=None)
    original.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    return original.eval()


def networks(original: nn.Module, example: Tensor) -> dict[str, nn.Module]:
    """Return the original and what conversion makes of it without any training."""
    return {
        "original": original,
        "stride, circular": convert(original, "stride", example),
        "aps, circular": convert(original, "aps", example),
        "aps on input, circular": convert(original, APS, example),
        "stride, seam": convert(original, "stride", example, padding="seam"),
        "aps, seam": convert(original, "aps", example, padding="seam"),
        "aps on input, seam": convert(original, APS, example, padding="seam"),
    }


def tuned(
    original: nn.Module, name: str, photos: list[Tensor], steps: int, save: Path | None = None
) -> nn.Module:
    """Return a converted network that the original taught; keep its weights, or find them."""
    spec, padding, learn, share = TUNED[name]
    torch.manual_seed(0)
    net = convert(original, spec, torch.randn(1, 3, 224, 224), padding=padding)
    file = save / f"{name}.pth" if save else None
    if file and file.exists():
        net.load_state_dict(torch.load(file, weights_only=True))
        return net
    distill(original, net, spec, photos, int(share * steps), padding=padding, learn=learn)
    if file:
        torch.save(net.state_dict(), file)
    return net


def distill(
    original: nn.Module,
    net: Converted,
    spec: ts.Sampling,
    photos: list[Tensor],
    steps: int,
    *,
    padding: str = "circular",
    learn: str = "",
    size: int = 224,
) -> list[float]:
    """Teach a converted MobileNetV2 the original's features before the classifier; no labels.

    The parts of a converted network are the converted parts. So the first blocks, which keep their
    weights, see every crop once, and the rest learns from what they make of it.

    Args:
        original: The teacher.
        net: The student, ``convert(original, spec, ...)``; it is changed.
        spec: How it was converted.
        padding: How it was converted.
        photos: Pictures ``(3, H, W)`` as bytes.
        steps: Steps of Adam with 16 crops each.
        learn: How names of parameters that learn begin.
        size: Size of the crops.

    Returns:
        The loss of every step.
    """
    # Crops are taken as they are: they begin at their seam already.
    first, rest = halves(original, net, spec, "keep" if padding == "seam" else padding, size)
    maps, wanted = look(first, headless(original.features), photos, 5 * steps, size)
    for name, parameter in rest.named_parameters():
        parameter.requires_grad_(name.startswith(learn))
    selectors = [p for name, p in rest.named_parameters() if name.startswith("sampling.")]
    weights = [p for name, p in rest.named_parameters() if not name.startswith("sampling.")]
    rates = ((selectors, 1e-3), (weights, 1e-4))  # selectors are new and learn faster
    optimizer = torch.optim.Adam([{"params": p, "lr": rate} for p, rate in rates if p])
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer,
        [group["lr"] for group in optimizer.param_groups],
        steps,
        pct_start=0.05,
        cycle_momentum=False,
    )
    if selectors:
        ts.set_tau(rest, 0.05)  # soft phases that are nearly hard
        rest.get_submodule("sampling").train()  # batch norms stay in eval mode
    losses = []
    for _ in range(steps):
        chosen = torch.randint(len(maps), (16,))
        loss = nn.functional.mse_loss(rest(maps[chosen].float()), wanted[chosen])
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        schedule.step()
        losses.append(loss.item())
        if len(losses) % 50 == 0:
            print(f"step {len(losses)}: loss {statistics.mean(losses[-50:]):.4f}", flush=True)
    unknown = net.load_state_dict(rest.state_dict(), strict=False).unexpected_keys
    assert not unknown
    return losses


def headless(blocks: nn.Module) -> nn.Module:
    """Return blocks of MobileNetV2 with the global mean after them."""
    ends = {"pool": nn.AdaptiveAvgPool2d(1), "flatten": nn.Flatten()}
    return nn.Sequential(OrderedDict(features=blocks, **ends)).eval()


def halves(
    original: nn.Module, net: Converted, spec: ts.Sampling, padding: str, size: int
) -> tuple[Converted, Converted]:
    """Return the first blocks of a converted network, and the rest up to its features."""
    example = torch.randn(1, 3, size, size)
    blocks = nn.Sequential(OrderedDict(features=original.features[:SPLIT])).eval()
    first = convert(blocks, spec, example, padding=padding)
    with torch.no_grad():
        maps = first(example)
    rest = convert(headless(original.features[SPLIT:]), spec, maps, padding=padding)
    state = net.state_dict()
    for part in (first, rest):
        part.load_state_dict({name: state[name] for name in part.state_dict()})
    return first, rest


@torch.no_grad()
def look(
    first: nn.Module, teacher: nn.Module, photos: list[Tensor], count: int, size: int
) -> tuple[Tensor, Tensor]:
    """Return what the first blocks and the teacher make of random crops."""
    from torchvision.transforms import Compose, RandomHorizontalFlip, RandomResizedCrop

    crop = Compose([RandomResizedCrop(size, (0.3, 1), antialias=True), RandomHorizontalFlip()])
    maps, wanted = [], []
    for chosen in torch.randint(len(photos), (count,)).split(10):
        images = normalise(torch.stack([crop(photos[i]) for i in chosen]))
        maps.append(first(images).half())
        wanted.append(teacher(images))
    return torch.cat(maps), torch.cat(wanted)


def read_images(folder: Path) -> tuple[Tensor, Tensor]:
    """Return normalised images ``(N, 3, 256, 256)`` and their labels."""
    files = sorted(path for path in folder.glob("*/*") if path.is_file())
    labels = torch.tensor([int(path.parent.name) for path in files])
    return normalise(torch.stack([read_photo(path) for path in files])), labels


def read_photo(path: Path) -> Tensor:
    """Return a picture ``(3, H, W)`` as bytes; its shorter side is 288 at most."""
    from PIL import Image
    from torchvision.transforms.functional import pil_to_tensor, resize

    image = Image.open(path).convert("RGB")
    return pil_to_tensor(resize(image, [288]) if min(image.size) > 288 else image)


def normalise(pixels: Tensor) -> Tensor:
    """Return bytes as ImageNet's networks expect them."""
    mean, std = (torch.tensor(values).view(3, 1, 1) for values in (IMAGENET_MEAN, IMAGENET_STD))
    return (pixels / 255 - mean) / std


@torch.inference_mode()
def evaluate(net: nn.Module, images: Tensor, labels: Tensor) -> dict[str, float]:
    """Return top-1 and both consistencies of the paper, on crops of 224."""
    net.eval()
    generator = torch.Generator().manual_seed(0)
    circular, standard = ts.metrics.CircularConsistency(), ts.metrics.ShiftConsistency()
    right = equal = 0

    def moved(batch: Tensor) -> Tensor:
        shifts = torch.randint(0, 33, (len(batch), 2), generator=generator).tolist()
        pairs = zip(batch, shifts, strict=True)
        return net(torch.stack([ts.shifts.circular_shift(x, *shift) for x, shift in pairs]))

    for image, label in zip(images.split(10), labels.split(10), strict=True):
        centre = image[:, :, 16:240, 16:240]
        right += int((net(centre).argmax(1) == label).sum())
        one, other = moved(centre), moved(centre)
        circular.update(one, other)
        equal += int((one == other).all(1).sum())
        standard.update(net, image)
    plan = getattr(net, "plan", None)
    return {
        "top1": right / len(images),
        "circular": circular.compute().item(),
        "bitwise_equal": equal,
        "standard": standard.compute().item(),
        "flops": plan.flops_after / plan.flops if plan else 1.0,
    }


@torch.inference_mode()
def clock(nets: dict[str, nn.Module], images: Tensor, rounds: int = 7) -> dict[str, dict]:
    """Return times of a batch relative to the first network's; medians, turn by turn."""
    rows: dict[str, dict[str, float]] = {name: {} for name in nets}
    layouts = {"time": torch.contiguous_format, "time_channels_last": torch.channels_last}
    for key, layout in layouts.items():
        batch = images.contiguous(memory_format=layout)
        calls = {
            name: functools.partial(net.eval().to(memory_format=layout), batch)
            for name, net in nets.items()
        }
        milliseconds = medians(calls, rounds)
        for name in nets:
            rows[name][key] = milliseconds[name] / next(iter(milliseconds.values()))
    return rows


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, help="torchvision's MobileNetV2 weights")
    parser.add_argument("--images", type=Path, help="folder with one folder of images per class")
    parser.add_argument("--tuning-images", type=Path, help="folder of photos to learn from")
    parser.add_argument("--steps", type=int, default=600, help="steps of tuning")
    parser.add_argument("--save", type=Path, help="folder for tuned weights, used if there")
    arguments = parser.parse_args()
    if arguments.weights and arguments.images:
        measure(arguments)
    else:
        main()
