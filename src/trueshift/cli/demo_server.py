"""The server behind ``trueshift demo``: the page, predictions under a shift, photos dropped in."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Lock
from typing import Any
from urllib.parse import parse_qs, urlsplit

import torch
from torch import Tensor, nn

from trueshift.report.html import template
from trueshift.report.images import data_uri
from trueshift.shifts import circular_shift, standard_shift

TOP, MOST_PICTURES = 3, 100


@dataclass(frozen=True)
class Shown:
    """A network on the page: what it is called and how its inputs are normalised."""

    name: str
    network: nn.Module
    mean: float | Sequence[float]
    std: float | Sequence[float]

    def predict(self, pixels: Tensor) -> Tensor:
        """Return the probabilities ``(K,)`` for a uint8 image ``(3, H, W)``."""
        mean, std = (torch.as_tensor(v).view(-1, 1, 1) for v in (self.mean, self.std))
        with torch.inference_mode():
            return self.network(((pixels / 255 - mean) / std)[None]).softmax(1)[0]


class Demo:
    """What the page asks for: the pictures, and predictions under a shift.

    Args:
        networks: Networks in eval mode.
        pictures: Pictures ``(N, 3, H, W)``, uint8.
        size: Height and width of what networks see: the centre of a picture, which wraps around,
            or a frame that moves over it.
        class_names: What the labels are called; by default their numbers.
    """

    def __init__(
        self,
        networks: Sequence[Shown],
        pictures: Tensor,
        size: tuple[int, int],
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.networks, self.class_names = networks, class_names
        self.pictures, self.size = list(pictures), size
        self.margin = [(have - n) // 2 for have, n in zip(pictures.shape[2:], size, strict=True)]
        self._lock = Lock()  # torch uses all cores for one picture

    def page(self) -> str:
        """Return the page."""
        (height, width), (top, left) = self.size, self.margin
        names, images = [shown.name for shown in self.networks], map(data_uri, self.pictures)
        sizes = {"height": height, "width": width, "top": top, "left": left}
        return str(template("demo.html.j2").render(names=names, images=list(images), **sizes))

    def add(self, pixels: bytes) -> int:
        """Take a photo of the size of the pictures, RGB, row by row; return its number."""
        height, width = self.pictures[0].shape[1:]
        if len(pixels) != 3 * height * width or len(self.pictures) >= MOST_PICTURES:
            raise ValueError(f"a photo has {3 * height * width} bytes, got {len(pixels)}.")
        photo = torch.frombuffer(bytearray(pixels), dtype=torch.uint8).view(height, width, 3)
        with self._lock:
            self.pictures.append(photo.permute(2, 0, 1).contiguous())
            return len(self.pictures) - 1

    def seen(self, image: int, dy: int, dx: int, kind: str) -> Tensor:
        """Return what networks see of a picture ``(3, H, W)``.

        Args:
            image: Number of the picture.
            dy: Shift downwards, of the picture or of the frame.
            dx: Shift to the right.
            kind: ``"circular"``: the picture wraps around; ``"frame"``: the frame moves.
        """
        if not 0 <= image < len(self.pictures):
            raise ValueError(f"there are {len(self.pictures)} pictures, got number {image}.")
        picture = self.pictures[image]
        if kind == "frame":
            dy, dx = (max(-m, min(m, v)) for v, m in zip((dy, dx), self.margin, strict=True))
            return standard_shift(picture, self.size, -dy, -dx)
        return circular_shift(standard_shift(picture, self.size, 0, 0), dy, dx)

    def predict(
        self, image: int, dy: int, dx: int, kind: str = "circular", chosen: Sequence[int] = ()
    ) -> list[dict[str, Any]]:
        """Return the label and the best few classes with their probabilities.

        Args:
            image: Number of the picture.
            dy: Shift downwards.
            dx: Shift to the right.
            kind: As for :meth:`seen`.
            chosen: Numbers of the networks to ask; none means all.
        """
        pixels = self.seen(image, dy, dx, kind)
        asked = [self.networks[k] for k in chosen] or self.networks
        with self._lock:
            return [self._answer(shown.predict(pixels)) for shown in asked]

    def _answer(self, probabilities: Tensor) -> dict[str, Any]:
        best = probabilities.topk(min(TOP, len(probabilities)))
        names = [self._name(int(label)) for label in best.indices]
        return {"label": names[0], "top": list(zip(names, best.values.tolist(), strict=True))}

    def _name(self, label: int) -> str:
        known = self.class_names is not None and label < len(self.class_names)
        return self.class_names[label] if known else str(label)  # type: ignore[index]


def serve(demo: Demo, host: str = "127.0.0.1", port: int = 0) -> ThreadingHTTPServer:
    """Return a server of the page; call its ``serve_forever``.

    Args:
        demo: What to show.
        host: Address to listen on; by default only this machine can connect.
        port: Port, 0 for any that is free.
    """

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            address = urlsplit(self.path)
            if address.path == "/":
                self._send(HTTPStatus.OK, "text/html; charset=utf-8", demo.page())
            elif address.path == "/predict":
                self._answer(lambda: _predict(demo, parse_qs(address.query)))
            else:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", "nothing here")

        def do_POST(self) -> None:
            length = min(int(self.headers.get("Content-Length", 0)), 3 * 4096**2)
            self._answer(lambda: demo.add(self.rfile.read(length)))

        def _answer(self, compute: Any) -> None:
            try:
                answer = compute()
            except (KeyError, IndexError, ValueError) as error:
                return self._send(HTTPStatus.BAD_REQUEST, "text/plain", f"bad request: {error}")
            return self._send(HTTPStatus.OK, "application/json", json.dumps(answer))

        def _send(self, status: HTTPStatus, kind: str, text: str) -> None:
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", kind)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Say nothing: a drag makes hundreds of requests."""

    return ThreadingHTTPServer((host, port), Handler)


def _predict(demo: Demo, query: dict[str, list[str]]) -> list[dict[str, Any]]:
    image, dy, dx = (int(query[key][0]) for key in ("image", "dy", "dx"))
    chosen = [int(k) for k in query.get("networks", [""])[0].split(",") if k]
    return demo.predict(image, dy, dx, query.get("kind", ["circular"])[0], chosen)
