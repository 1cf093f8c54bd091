"""Pictures inside an HTML file: PNG as data URIs, without any imaging library."""

from __future__ import annotations

import base64
import struct
import zlib

import torch
from torch import Tensor

_COLOURS = (
    (40, 44, 60), (230, 159, 0), (86, 180, 233), (0, 158, 115), (240, 228, 66), (0, 114, 178),
    (213, 94, 0), (204, 121, 167), (153, 102, 51), (170, 220, 120), (150, 150, 220),
    (255, 190, 190), (90, 110, 20), (120, 40, 120), (190, 190, 190), (0, 200, 200), (110, 50, 20),
    (250, 120, 90), (60, 80, 220), (200, 160, 90), (20, 90, 70),
)  # fmt: skip
CHANGED = (220, 20, 40)  # pixels with another label
_LOW, _MIDDLE, _HIGH = (178, 24, 43), (253, 200, 120), (33, 102, 172)
_UNLABELLED, _UNLABELLED_COLOUR = 255, (255, 255, 255)


def data_uri(pixels: Tensor) -> str:
    """Encode a picture.

    Args:
        pixels: uint8 ``(C, H, W)`` with 1 (grey), 3 (RGB) or 4 (RGBA) channels.

    Returns:
        ``data:image/png;base64,...``

    Examples:
        >>> data_uri(torch.zeros(1, 2, 2, dtype=torch.uint8))[:22]
        'data:image/png;base64,'
    """
    channels, height, width = pixels.shape
    colour = {1: 0, 3: 2, 4: 6}[channels]
    lines = torch.zeros(height, 1 + width * channels, dtype=torch.uint8)  # filter 0 on each line
    lines[:, 1:] = pixels.permute(1, 2, 0).reshape(height, -1)
    raw = lines.numpy().tobytes()
    head = struct.pack(">IIBBBBB", width, height, 8, colour, 0, 0, 0)
    parts = (_chunk(b"IHDR", head), _chunk(b"IDAT", zlib.compress(raw, 9)), _chunk(b"IEND", b""))
    png = b"\x89PNG\r\n\x1a\n" + b"".join(parts)
    return "data:image/png;base64," + base64.b64encode(png).decode()


def colour_mask(mask: Tensor) -> Tensor:
    """Colour labels ``(..., H, W)``: uint8 ``(..., 3, H, W)``; 255, which is no label, is white."""
    colours = [_COLOURS[k % len(_COLOURS)] for k in range(_UNLABELLED)]
    palette = torch.tensor([*colours, _UNLABELLED_COLOUR], dtype=torch.uint8)
    return palette[mask].movedim(-1, -3)


def tile(pictures: Tensor, columns: int) -> Tensor:
    """Lay pictures ``(V, C, H, W)`` out row by row: ``(C, rows * H, columns * W)``."""
    num, channels, height, width = pictures.shape
    grid = pictures.view(num // columns, columns, channels, height, width)
    grid = grid.permute(2, 0, 3, 1, 4)
    return grid.reshape(channels, num // columns * height, columns * width)


def heat_picture(shares: Tensor, lowest: float) -> Tensor:
    """Colour shares ``(rows, columns)`` from ``lowest`` (red) to 1 (blue); NaN is transparent."""
    position = ((shares - lowest) / max(1 - lowest, 1e-9)).clamp(0, 1).nan_to_num(0.0)
    stops = torch.tensor([_LOW, _MIDDLE, _HIGH], dtype=torch.float64)
    scaled = position * 2
    below = scaled.floor().clamp(max=1).long()
    part = (scaled - below)[..., None]
    colour = stops[below] * (1 - part) + stops[below + 1] * part  # (rows, columns, 3)
    opaque = (~shares.isnan()).double()[..., None] * 255
    return torch.cat([colour, opaque], -1).round().to(torch.uint8).movedim(-1, 0)


def signed_picture(values: Tensor) -> Tensor:
    """Colour values ``(H, W)``, uint8 with 128 for 0: red above, white, blue below.

    Examples:
        >>> signed_picture(torch.tensor([[1, 128, 255]], dtype=torch.uint8))[:, 0].T.tolist()
        [[33, 102, 172], [255, 255, 255], [178, 24, 43]]
    """
    amount = (values.double() - 128) / 127
    end = torch.tensor([_LOW, _HIGH], dtype=torch.float64)[(amount < 0).long()]  # (H, W, 3)
    part = amount.abs().clamp(max=1)[..., None]
    return (255 * (1 - part) + end * part).round().to(torch.uint8).movedim(-1, 0)


def _chunk(name: bytes, content: bytes) -> bytes:
    check = zlib.crc32(name + content)
    return struct.pack(">I", len(content)) + name + content + struct.pack(">I", check)
