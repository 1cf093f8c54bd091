"""Tables of our own: small budgets, with the paper's numbers where there are any."""

from __future__ import annotations

from dataclasses import replace

from trueshift.report.paper import CIFAR10, FILTERS, METHODS, NETWORKS, Row, Table
from trueshift.report.paper import TABLES as PAPER_TABLES

RANDOM = "APS (random)"  # trained with random phases


def _small(method: str, antialias: str, network: str, up: str) -> Row:
    key = {
        "data": "shapes",
        "network": NETWORKS[network],
        "method": METHODS[method],
        "antialias": FILTERS[antialias],
        "padding_mode": "circular",
        "up": up,
    }
    return Row(method, antialias, network, key, None)


VOC_SMALL = Table(
    None,
    "Segmentation of the built-in shapes with circular shifts, small networks and budgets"
    " (recipes/voc/small_*.yaml)",
    {
        "miou": "mIoU",
        "shifted_miou": "mIoU, shifted",
        "circular_consistency": "mASCC",
        "bitwise_equal": "Bitwise equal",
    },
    (
        _small("DeepLabV3+", "-", "DeepLabV3+ ResNet-18", "linear"),
        _small("LPF", "Rect-2", "DeepLabV3+ ResNet-18", "linear"),
        _small("DDAC", "Adapt-3", "DeepLabV3+ ResNet-18", "linear"),
        _small("APS", "Adapt-3", "DeepLabV3+ ResNet-18", "linear"),
        _small("LPD only", "Adapt-3", "DeepLabV3+ ResNet-18", "linear"),
        _small("LPS", "Adapt-3", "DeepLabV3+ ResNet-18", "polyphase"),
        _small("LPS", "Tri-3", "DeepLabV3+ ResNet-18", "polyphase"),
        _small("Baseline", "-", "U-Net", "linear"),
        _small("LPS", "Tri-3", "U-Net", "polyphase"),
    ),
)


def _mobilenet(
    label: str, network: str = "DeepLabV3Plus", *, up: str | None = None, **spec: str | None
) -> Row:
    key = {
        "data": "vocsegmentation",
        "network": f"segmentation_models_pytorch.{network}",
        "antialias": None,
        "padding_mode": "circular",
        "select_from": "output",
        "test_rule": "argmax",
        **({} if up is None else {"up": up}),
        **spec,
    }
    filters = {value: name for name, value in FILTERS.items()}
    return Row(label, filters[key["antialias"]], network, key, None)


_TRI3 = {"antialias": "tri3"}
VOC_MOBILENET = Table(
    None,
    "PASCAL VOC at 300 pixels with a pretrained MobileNetV2 (recipes/voc/mobilenet_*.yaml)",
    {
        "miou": "mIoU",
        "shifted_miou": "mIoU, shifted",
        "circular_consistency": "mASCC",
        "bitwise_equal": "Bitwise equal",
        "shift_consistency": "mASSC",
        "image_ms": "Time per image, ms",
        "image_mib": "Memory, MiB",
    },
    (
        _mobilenet("Baseline, zeros", method="stride", padding_mode="zeros"),
        _mobilenet("Baseline", method="stride"),
        _mobilenet("LPF", method="stride", **_TRI3),
        _mobilenet("APS", method="aps", up="linear", **_TRI3),
        _mobilenet(RANDOM, method="aps", up="polyphase", select_from="input", train_rule="random"),
        _mobilenet("LPD only", method="lps", up="linear", **_TRI3),
        _mobilenet("LPS", method="lps", up="polyphase"),
        _mobilenet("LPS", method="lps", up="polyphase", **_TRI3),
        _mobilenet(
            "LPS, select on input", method="lps", up="polyphase", select_from="input", **_TRI3
        ),
        _mobilenet(
            "LPS, softmax at the end", method="lps", up="polyphase", test_rule="softmax", **_TRI3
        ),
        _mobilenet("Baseline", "Unet", method="stride"),
        _mobilenet("LPS", "Unet", method="lps", up="polyphase", **_TRI3),
    ),
)


def _fast(row: Row) -> Row:
    key = {**row.key, "network": "resnet9", "select_from": "output"}
    return Row(row.method, row.antialias, "ResNet-9", key, None, row.numbers)


_FAST = [
    _fast(row) for row in CIFAR10.rows if row.method != "APS" or row.antialias in ("-", "Tri-3")
]
_CIFAR10_COLUMNS = {
    "accuracy": "Acc.",
    "shifted_accuracy": "Acc., shifted",
    "circular_consistency": "C-Cons.",
    "bitwise_equal": "Bitwise equal",
}
_PAPER = "and the paper's table 1 (ResNet-18, 50,000 images, 250 epochs)"
CIFAR10_FAST = Table(
    None,
    f"CIFAR-10 in minutes on one core (recipes/cifar10/fast_*.yaml), {_PAPER}",
    _CIFAR10_COLUMNS,
    (
        *_FAST[:3],
        Row(
            "LPS, select on input", "-", "ResNet-9", {**_FAST[2].key, "select_from": "input"}, None
        ),
        *_FAST[3:],
    ),
)


_RULES = {"LPS": "straight", "APS": "gumbel", RANDOM: "random"}  # how our recipes train


def _trained(row: Row) -> Row:
    rule = {"train_rule": _RULES[row.method]} if row.method in _RULES else {}
    return replace(row, key={**row.key, **rule})


_MUON = tuple(
    _trained(row)
    for row in _FAST
    if (row.method, row.antialias) == ("Baseline", "-")
    or (row.antialias == "Tri-3" and row.method in ("LPF", "APS", "LPS"))
)
_RANDOM = tuple(
    _trained(replace(row, method=RANDOM, numbers={})) for row in _MUON if row.method == "APS"
)
CIFAR10_QUICK = Table(
    None,
    f"CIFAR-10 in two minutes of one core (recipes/cifar10/quick_*.yaml), {_PAPER}",
    _CIFAR10_COLUMNS,
    (*_MUON[:-1], *_RANDOM, _MUON[-1]),
)
CIFAR10_RECORD = Table(
    None,
    f"CIFAR-10 with 45 epochs of a ResNet-9 (recipes/cifar10/record_*.yaml), {_PAPER}",
    _CIFAR10_COLUMNS,
    _MUON,
)


def _transformer(network: str, method: str, antialias: str) -> Row:
    key = {
        "data": "cifar10",
        "network": network.lower(),
        "method": "aps" if method == RANDOM else METHODS[method],
        "antialias": FILTERS[antialias],
        "padding_mode": "circular",
    }
    return _trained(Row(method, antialias, network, key, None))


_TRANSFORMERS = (
    ("ViT", "Baseline", "-"),
    ("ViT", "APS", "-"),
    ("ViT", RANDOM, "-"),
    ("ViT", "LPS", "-"),
    ("Swin", "Baseline", "-"),
    ("Swin", "LPF", "Tri-3"),
    ("Swin", "APS", "Tri-3"),
    ("Swin", RANDOM, "Tri-3"),
    ("Swin", "LPS", "Tri-3"),
)
CIFAR10_TRANSFORMERS = Table(
    None,
    "CIFAR-10 with small transformers, at most a quarter of an hour of one core"
    " (recipes/cifar10/vit_*.yaml, swin_*.yaml)",
    _CIFAR10_COLUMNS,
    tuple(_transformer(*row) for row in _TRANSFORMERS),
)

_FLOWS = {
    "Kuramoto-Sivashinsky": "kuramoto_sivashinsky",
    "Burgers": "burgers",
    "Navier-Stokes, decaying": "decaying_navier_stokes",
    "Navier-Stokes, forced": "forced_navier_stokes",
    "Dye in a channel": "channel",
}


def _flow(equation: str, method: str, antialias: str, select_from: str = "output") -> Row:
    key = {
        "data": "flows",
        "setting": _FLOWS[equation],
        "network": "fno" if method == "FNO" else "unet",
        "method": METHODS.get(method, "stride"),
        "antialias": FILTERS[antialias],
        "select_from": select_from,
    }
    name = method if select_from == "output" else f"{method}, select on input"
    return Row(name, antialias, equation, key, None)


_FLOW_ROWS = (
    ("Baseline", "-"),
    ("LPF", "Tri-3"),
    ("APS", "Tri-3"),
    ("LPS", "-"),
    ("LPS", "Tri-3"),
    ("LPS", "Tri-3", "input"),
    ("FNO", "-"),
)
FLOWS = Table(
    None,
    "Emulators of flows (recipes/flows/*.yaml): steps until the error passes 20 %, relative errors,"
    " and shifts under which 200 steps are exact",
    {
        "valid_time": "Valid steps",
        "one_step_error": "Error, 1 step",
        "error_10": "10 steps",
        "spectrum_error": "Spectrum",
        "bitwise_equal": "Bitwise equal",
    },
    tuple(
        _flow(equation, *row)
        for equation in _FLOWS
        for row in _FLOW_ROWS
        if (equation, row[0]) != ("Dye in a channel", "FNO")  # FNO needs a torus
    ),
    not_fractions=("valid_time", "spectrum_error"),
)

TABLES = {
    **PAPER_TABLES,
    "cifar10-record": CIFAR10_RECORD,
    "cifar10-quick": CIFAR10_QUICK,
    "cifar10-fast": CIFAR10_FAST,
    "cifar10-transformers": CIFAR10_TRANSFORMERS,
    "voc-small": VOC_SMALL,
    "voc-mobilenet": VOC_MOBILENET,
    "flows": FLOWS,
}
