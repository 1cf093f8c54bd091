"""Files that are whole or not there."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


def check_parent(path: Path | None) -> None:
    """Raise unless the folder of a file to write exists; ``None`` is no file."""
    if path is not None and not path.parent.is_dir():
        raise FileNotFoundError(f"no folder {path.parent} to write {path.name} to.")


@contextmanager
def written_whole(path: Path) -> Iterator[Path]:
    """Give a second file to write to, which takes the place of ``path`` once it is complete.

    A write cut short leaves what was there before.

    Examples:
        >>> import tempfile
        >>> path = Path(tempfile.mkdtemp()) / "net.onnx"
        >>> with written_whole(path) as partial:
        ...     _ = partial.write_text("all of it")
        >>> path.read_text(), partial.name
        ('all of it', 'net.partial.onnx')
    """
    partial = path.with_name(f"{path.stem}.partial{path.suffix}")
    try:
        yield partial
        partial.replace(path)
    finally:
        partial.unlink(missing_ok=True)
