"""Make a pretrained classifier exactly shift-invariant in one line, and measure what it costs.

Without arguments a small ResNet with random weights stands in for the pretrained network::

    python examples/convert_pretrained.py

With weights and images (one folder per class, named by its number) it is MobileNetV2; the table
shows the original, the original with circular padding, and the converted networks::

    python examples/convert_pretrained.py --weights mobilenet_v2.pth --images imagenet_val
"""

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor, nn

import trueshift as ts
from trueshift.convert import convert


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


def measure(weights: Path, folder: Path, steps: int) -> None:
    """Print accuracy, consistency, time and FLOPs of MobileNetV2 and its conversions."""
    from trueshift._torchvision import import_torchvision

    import_torchvision()
    from torchvision.models import mobilenet_v2

    original = mobilenet_v2(weights=None)
    original.load_state_dict(torch.load(weights, map_location="cpu", weights_only=True))
    original.eval()
    images, labels = read_images(folder)
    centre = images[:, :, 16:240, 16:240]
    example = centre[:1]
    spec = ts.Sampling("lps", hidden="eighth", select="input")
    tuned = tune(original, convert(original, spec, example), images[::2], steps)
    images, labels = images[1::2], labels[1::2]  # tuning has not seen these
    nets = {
        "original": original,
        "circular padding": convert(original, "stride", example),
        "aps": convert(original, "aps", example),
        "aps, select on input": convert(original, "aps", example, select="input"),
        "lps, selectors and norms tuned": tuned,
    }
    print(f"{'network':32} top-1  circular  standard  time   FLOPs")
    base = 0.0
    for name, net in nets.items():
        top1, circular, standard, seconds = evaluate(net, images, labels)
        base = base or seconds
        plan = getattr(net, "plan", None)
        flops = plan.flops_after / plan.flops if plan else 1.0
        row = f"{name:32} {top1:5.3f}  {circular:8.3f}  {standard:8.3f}"
        print(f"{row}  {seconds / base:4.2f}x  {flops:4.2f}x", flush=True)


def read_images(folder: Path) -> tuple[Tensor, Tensor]:
    """Return normalised images ``(N, 3, 256, 256)`` and their labels."""
    from PIL import Image
    from torchvision.transforms.functional import pil_to_tensor

    files = sorted(path for path in folder.glob("*/*") if path.is_file())
    pixels = torch.stack([pil_to_tensor(Image.open(path).convert("RGB")) for path in files])
    mean = torch.tensor((0.485, 0.456, 0.406)).view(3, 1, 1)
    std = torch.tensor((0.229, 0.224, 0.225)).view(3, 1, 1)
    labels = torch.tensor([int(path.parent.name) for path in files])
    return (pixels / 255 - mean) / std, labels


@torch.inference_mode()
def evaluate(net: nn.Module, images: Tensor, labels: Tensor) -> tuple[float, float, float, float]:
    """Return top-1, circular consistency, standard consistency and seconds, on crops of 224."""
    net.eval()
    generator = torch.Generator().manual_seed(0)
    right = circular = standard = 0
    seconds = 0.0
    for image, label in zip(images.split(10), labels.split(10), strict=True):
        centre = image[:, :, 16:240, 16:240]
        start = time.perf_counter()
        found = net(centre).argmax(1)
        seconds += time.perf_counter() - start
        dy, dx, top, left = torch.randint(0, 33, (4,), generator=generator).tolist()
        moved = net(ts.shifts.circular_shift(centre, dy, dx)).argmax(1)
        other = net(image[:, :, top : top + 224, left : left + 224]).argmax(1)
        right += int((found == label).sum())
        circular += int((found == moved).sum())
        standard += int((found == other).sum())
    count = len(images)
    return right / count, circular / count, standard / count, seconds


def tune(original: nn.Module, net: nn.Module, images: Tensor, steps: int) -> nn.Module:
    """Teach a converted network the original's own output, without labels.

    Only selectors and the scales and offsets of batch norms learn; statistics stay.
    """
    for name, parameter in net.named_parameters():
        parameter.requires_grad_(name.startswith("sampling.") or parameter.ndim == 1)
    learned = [parameter for parameter in net.parameters() if parameter.requires_grad]
    optimizer = torch.optim.Adam(learned, 1e-4)
    generator = torch.Generator().manual_seed(0)
    net.eval()
    net.get_submodule("sampling").train()
    for _ in range(steps):
        chosen = torch.randint(0, len(images), (8,), generator=generator)
        top, left = torch.randint(0, 33, (2,), generator=generator).tolist()
        batch = images[chosen, :, top : top + 224, left : left + 224]
        with torch.no_grad():
            wanted = original(batch).log_softmax(1)
        loss = nn.functional.kl_div(
            net(batch).log_softmax(1), wanted, reduction="batchmean", log_target=True
        )
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return net.eval()


if __name__ == "__main__":
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--weights", type=Path, help="torchvision's MobileNetV2 weights")
    parser.add_argument("--images", type=Path, help="folder with one folder of images per class")
    parser.add_argument("--steps", type=int, default=200, help="steps of tuning")
    arguments = parser.parse_args()
    if arguments.weights and arguments.images:
        measure(arguments.weights, arguments.images, arguments.steps)
    else:
        main()
