import asyncio
import re
from pathlib import Path

import nbformat
import pytest
from jupyter_client import AsyncKernelManager
from nbclient import NotebookClient

TUTORIALS = sorted((Path(__file__).parents[1] / "docs" / "tutorials").glob("*.ipynb"))
EVERY_TUTORIAL = pytest.mark.parametrize("path", TUTORIALS, ids=lambda path: path.stem)


def read(path):
    return nbformat.read(path, as_version=4)


def code(notebook):
    return [cell for cell in notebook.cells if cell.cell_type == "code"]


def printed(cell):
    return "".join(output.text for output in cell.outputs if output.output_type == "stream")


def test_the_seven_tutorials_are_there():
    names = {path.stem for path in TUTORIALS}
    assert names == {
        "lpd", "lpu", "convert", "transformers", "audit", "signals_1d", "simulations"
    }  # fmt: skip


@EVERY_TUTORIAL
def test_tutorial_runs_and_its_claims_hold(path, tmp_path, monkeypatch):
    # Nothing of the user's own Jupyter: its kernel could be another interpreter.
    for name in ("JUPYTER_CONFIG_DIR", "JUPYTER_DATA_DIR", "JUPYTER_RUNTIME_DIR", "IPYTHONDIR"):
        monkeypatch.setenv(name, str(tmp_path / name.lower()))
    notebook = read(path)
    stored = [printed(cell) for cell in code(notebook)]
    asyncio.run(run(notebook, tmp_path))
    assert sum(cell.source.count("assert ") for cell in code(notebook)) >= 2
    assert all(cell.execution_count for cell in code(notebook))
    kinds = {output.output_type for cell in code(notebook) for output in cell.outputs}
    assert kinds <= {"stream", "display_data", "execute_result"}  # nothing raised
    assert [bool(text) for text in stored] == [bool(printed(cell)) for cell in code(notebook)]


async def run(notebook, folder):
    client = NotebookClient(
        notebook,
        timeout=300,
        kernel_name="python3",
        kernel_manager_class=AsyncKernelManager,
        resources={"metadata": {"path": str(folder)}},
    )
    await client.async_execute()


@EVERY_TUTORIAL
def test_tutorial_holds_the_outputs_of_one_clean_run(path):
    notebook = read(path)
    nbformat.validate(notebook)
    counts = [cell.execution_count for cell in code(notebook)]
    assert counts == list(range(1, len(counts) + 1))
    outputs = [output for cell in code(notebook) for output in cell.outputs]
    assert outputs
    assert all(output.get("name") != "stderr" for output in outputs)
    assert not any(output.output_type == "error" for output in outputs)
    assert 8 <= len(notebook.cells) <= 20


@EVERY_TUTORIAL
def test_tutorial_is_small_and_tells_nothing_of_a_machine(path):
    text = path.read_text()
    assert len(text) < 250_000
    assert not re.search(r"/(home|root|work|tmp|Users|usr)/", text)
    assert not re.search(r"\b0x[0-9a-f]{6,}", text)


def test_tutorials_are_in_the_documentation():
    navigation = (Path(__file__).parents[1] / "mkdocs.yml").read_text()
    for path in TUTORIALS:
        assert f"tutorials/{path.name}" in navigation
