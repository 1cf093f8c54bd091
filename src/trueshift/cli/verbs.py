"""The verbs of the command line: what they do, and the file of each."""

from __future__ import annotations

from types import ModuleType

COMMANDS = {
    "quickstart": "train six small networks on built-in data and compare them",
    "fit": "train a network from a recipe",
    "validate": "validate a checkpoint",
    "test": "test a checkpoint: accuracy and consistency",
    "sweep": "train and test recipes with several seeds",
    "predict": "predict labels or masks",
    "audit": "see how much a network changes when images move",
    "demo": "drag an image in the browser, see two networks answer",
    "figure": "draw masks, components and filters of checkpoints",
    "norms": "see whether learned selectors choose",
    "table": "put results next to the paper's",
    "bench": "parameters, speed and memory of whole networks",
    "export": "write a network as ONNX or pt2, and check the file",
    "data": "get a data set and check it",
    "recipes": "list or copy the recipes",
    "completion": "print tab completion for a shell",
}
LIGHTNING = ("fit", "validate", "test", "predict")  # LightningCLI parses their arguments


def import_verb(verb: str) -> ModuleType:
    """Import the module of a verb; only these import Lightning, so ``--help`` stays quick.

    It holds ``configure(parser)`` and ``run(args)``; that of :data:`LIGHTNING` holds
    ``main(verb, words)``.
    """
    match verb:
        case "quickstart":
            from trueshift.cli import quickstart

            return quickstart
        case "demo":
            from trueshift.cli import demo

            return demo
        case verb if verb in LIGHTNING:
            from trueshift.cli import lightning

            return lightning
    from trueshift.cli import (
        audit,
        bench,
        completion,
        data,
        export,
        figure,
        norms,
        recipes,
        sweep,
        table,
    )

    modules = (audit, bench, completion, data, export, figure, norms, recipes, sweep, table)
    return {module.__name__.rpartition(".")[2]: module for module in modules}[verb]
