"""Heavy libraries are loaded when something needs them, not when the names of models and data are asked for."""

import subprocess
import sys

PROGRAM = """
import sys
import plures.data, plures.models
from plures.registry import DATASETS, MODELS, PARTITIONERS, WORLDS
assert {"cifar_cnn", "char_gru", "mlp"} <= set(MODELS) and "digits" in DATASETS and "rotation" in PARTITIONERS and WORLDS
print(*sorted({name.split(".")[0] for name in sys.modules} & {"flax", "polars", "scipy", "sklearn"}))
"""


def test_names_of_models_and_data_are_known_without_heavy_libraries():
    said = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True).stdout

    assert said.split() == []
