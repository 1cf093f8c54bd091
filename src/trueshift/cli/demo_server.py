"""The server behind ``trueshift demo``: the page, and predictions under a shift."""

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
from trueshift.shifts import circular_shift

TOP = 3


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
        networks: One or two networks, in eval mode.
        images: Pictures ``(N, 3, H, W)``, uint8.
        class_names: What the labels are called; by default their numbers.
    """

    def __init__(
        self,
        networks: Sequence[Shown],
        images: Tensor,
        class_names: Sequence[str] | None = None,
    ) -> None:
        self.networks, self.images, self.class_names = networks, images, class_names
        self._lock = Lock()  # torch uses all cores for one picture

    def page(self) -> str:
        """Return the page."""
        height, width = self.images.shape[2:]
        return str(
            template("demo.html.j2").render(
                names=[shown.name for shown in self.networks],
                images=[data_uri(image) for image in self.images],
                height=height,
                width=width,
            )
        )

    def predict(self, image: int, dy: int, dx: int) -> list[dict[str, Any]]:
        """Return the label, the best few classes and their probabilities, for every network."""
        if not 0 <= image < len(self.images):
            raise ValueError(f"there are {len(self.images)} pictures, got number {image}.")
        moved = circular_shift(self.images[image], dy, dx)
        with self._lock:
            return [self._answer(shown.predict(moved)) for shown in self.networks]

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
                self._predict(parse_qs(address.query))
            else:
                self._send(HTTPStatus.NOT_FOUND, "text/plain", "nothing here")

        def _predict(self, query: dict[str, list[str]]) -> None:
            try:
                numbers = [int(query[key][0]) for key in ("image", "dy", "dx")]
                answers = demo.predict(*numbers)
            except (KeyError, ValueError) as error:
                return self._send(HTTPStatus.BAD_REQUEST, "text/plain", f"bad request: {error}")
            return self._send(HTTPStatus.OK, "application/json", json.dumps(answers))

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
