import ast
from pathlib import Path

import pytest

SOURCE = Path(__file__).parents[1] / "src" / "trueshift"
FILES = sorted(SOURCE.rglob("*.py"))
NAMES = [str(path.relative_to(SOURCE)) for path in FILES]

# Imports go down only: a folder or file may import what stands on a lower line.
LEVELS = [
    {"__main__"},
    {"cli"},
    {"quickstart"},
    {"report", "export"},
    {"training"},
    {"audit", "bench"},
    {"anchor", "models", "convert", "data", "metrics"},
    {"layers", "optimize"},
    {"_cpu"},
    {"functional"},
    {"ties", "windows"},
    {"exact", "shifts"},
    {"_validate"},
    {"_dispatch", "_files", "_torchvision", "memory"},
]
UPWARD = {"audit/results.py": {"report"}}  # a result renders itself on request
LEVEL = {name: level for level, names in enumerate(LEVELS) for name in names}
HEAVY = {
    "jinja2",
    "lightning",
    "matplotlib",
    "onnx",
    "onnxruntime",
    "segmentation_models_pytorch",
    "timm",
    "torchmetrics",
    "torchvision",
}
MAY_BE_HEAVY = {
    "audit",
    "bench",
    "cli",
    "convert",
    "data",
    "metrics",
    "models",
    "quickstart",
    "report",
    "training",
}


def imported_modules(path):
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module
            if node.module == "trueshift":
                names = [alias.name for alias in node.names if alias.name != "__version__"]
                yield from (f"trueshift.{name}" for name in names)


def unit(path):
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


@pytest.mark.parametrize(
    "path",
    [path for path in FILES if unit(path) != "__init__"],
    ids=lambda path: str(path.relative_to(SOURCE)),
)
def test_imports_go_down(path):
    assert unit(path) in LEVEL
    own = [name.split(".") for name in imported_modules(path) if name.startswith("trueshift.")]
    upward = UPWARD.get(str(path.relative_to(SOURCE)), set())
    for _, other, *_ in own:
        same_folder = other == unit(path)
        assert same_folder or LEVEL[other] > LEVEL[unit(path)] or other in upward, other


@pytest.mark.parametrize("path", FILES, ids=NAMES)
def test_heavy_packages_stay_where_they_are_needed(path):
    roots = {name.split(".")[0] for name in imported_modules(path)}
    assert unit(path) in MAY_BE_HEAVY or not roots & HEAVY


def imports_own_modules_by_name(tree):
    """Whether ``import_module`` is called with a name that begins with ``trueshift``."""
    calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
    names = [ast.unparse(c.args[0]) for c in calls if "import_module" in ast.unparse(c.func)]
    return any(name.lstrip("f").strip("'\"").startswith("trueshift") for name in names)


def asks_what_only_kernels_may(tree):
    """Whether a file asks about device, memory format, grad mode, threads or tracing."""
    names = [node.attr for node in ast.walk(tree) if isinstance(node, ast.Attribute)]
    devices = [n for n in ast.walk(tree) if isinstance(n, ast.Attribute) and n.attr == "type"]
    asks = {"is_compiling", "_is_tracing", "is_contiguous", "is_grad_enabled", "get_num_threads"}
    return bool(asks & set(names)) or any("device" in ast.unparse(n.value) for n in devices)


KERNELS = {"_dispatch.py", "exact.py"} | {name for name in NAMES if name.startswith("_cpu/")}
REPORTS_THREADS = {"bench/meters.py", "cli/main.py"}
SHARES_THREADS = {"quickstart/run.py"}
TIMES_DEVICES = {"training/timing.py"}

# What no file outside ``__init__`` does, but those that are listed.
RULES = [
    (imports_own_modules_by_name, set()),
    (asks_what_only_kernels_may, REPORTS_THREADS | SHARES_THREADS | TIMES_DEVICES),
]


@pytest.mark.parametrize(("does", "allowed"), RULES)
def test_what_no_file_does(does, allowed):
    files = [path for path in FILES if path.name != "__init__.py"]
    breaking = {path for path in files if does(ast.parse(path.read_text()))}
    assert {str(path.relative_to(SOURCE)) for path in breaking} - KERNELS == allowed


def test_there_is_no_drawer_for_odds_and_ends():
    assert not {"utils.py", "core.py", "common.py", "helpers.py", "misc.py"} & {
        p.name for p in FILES
    }
