"""Load a checkpoint into the library's ResNet-9 and test it: accuracy, shifted accuracy, bits.

``python -m benchmarks.record.check_exact runs/record/NAME.pt``
"""

from __future__ import annotations

import argparse

import torch

import trueshift as ts
from benchmarks.record.body import to_library
from benchmarks.record.learn import MEANS, STDS
from benchmarks.record.run import load_body
from trueshift.data.cifar10 import load_cifar10


def load_model(path: str, method: str | None, half: bool) -> ts.models.ResNet9:
    """Return the library's network with the weights of a checkpoint.

    Args:
        path: Checkpoint.
        method: How the library samples; ``None`` means as the body was trained.
        half: Round the weights to half precision.
    """
    net, config = load_body(path)
    method = method or {"zero": "stride", "aps": "aps"}.get(config["rule"], "lps")
    hidden = config["hidden"] or 8
    model = ts.models.resnet9(
        ts.Sampling(method, "tri3", select_from="input", hidden=hidden),
        stem=config["stem"],
        widths=[int(w) for w in config["widths"].split(",")],
        residual=[bool(int(r)) for r in config["residual"].split(",")],
    )
    state = to_library(net)
    if half:
        state = {name: value.half().float() for name, value in state.items()}
    broken = [name for name, value in state.items() if not value.isfinite().all()]
    if broken:
        raise SystemExit(f"check_exact: weights are not finite: {broken}.")
    # Keys differ if the library samples by another method than the body was trained with.
    print(method, model.load_state_dict(state, strict=False))
    return model.eval()


@torch.no_grad()
def main() -> None:
    """Print accuracy and how many outputs keep their bits when the image is shifted."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("checkpoint")
    parser.add_argument("--data", default="data/cifar10")
    parser.add_argument("--images", type=int, default=1000)
    parser.add_argument("--method", choices=("lps", "aps", "stride"))
    parser.add_argument("--half", action="store_true", help="round weights to half precision")
    options = parser.parse_args()
    model = load_model(options.checkpoint, options.method, options.half)
    _, _, x, t = load_cifar10(options.data)
    x, t = x[: options.images], t[: options.images]
    generator = torch.Generator().manual_seed(0)
    right = moved_right = equal = 0
    for part, truth in zip(x.split(100), t.split(100), strict=True):
        images = (part / 255 - MEANS) / STDS
        shift = torch.randint(32, (2,), generator=generator).tolist()
        out, moved = model(images), model(images.roll(shift, (2, 3)))
        right += int((out.argmax(1) == truth).sum())
        moved_right += int((moved.argmax(1) == truth).sum())
        equal += int((out == moved).all(1).sum())
    print(
        f"accuracy {100 * right / len(x):.2f}, shifted {100 * moved_right / len(x):.2f},"
        f" bitwise equal {equal} of {len(x)}"
    )


if __name__ == "__main__":
    main()
