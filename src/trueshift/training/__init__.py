"""Train and test networks with Lightning: modules, schedules, results."""

from trueshift._torchvision import import_torchvision

import_torchvision()  # before Lightning, which imports it

from trueshift.training.callbacks import (  # noqa: E402
    PlainProgress,
    SaveOnInterrupt,
    WritePredictions,
)
from trueshift.training.classifier import Classifier  # noqa: E402
from trueshift.training.emulator import Emulator  # noqa: E402
from trueshift.training.module import NetworkModule  # noqa: E402
from trueshift.training.optim import (  # noqa: E402
    MultiStep,
    OneCycle,
    Poly,
    RateRule,
    parameter_groups,
)
from trueshift.training.randomness import StepSeeds  # noqa: E402
from trueshift.training.results import WriteResults  # noqa: E402
from trueshift.training.segmenter import Segmenter  # noqa: E402
from trueshift.training.tau import (  # noqa: E402
    MultiRateLinear,
    StepDecay,
    TauRule,
    TauSchedule,
    set_rules,
)
from trueshift.training.tested import AuditTested  # noqa: E402

__all__ = [
    "AuditTested",
    "Classifier",
    "Emulator",
    "MultiRateLinear",
    "MultiStep",
    "NetworkModule",
    "OneCycle",
    "PlainProgress",
    "Poly",
    "RateRule",
    "SaveOnInterrupt",
    "Segmenter",
    "StepDecay",
    "StepSeeds",
    "TauRule",
    "TauSchedule",
    "WritePredictions",
    "WriteResults",
    "parameter_groups",
    "set_rules",
]
