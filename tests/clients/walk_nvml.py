# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Call all NVML queries that need only a GPU, through a Python binding.

Prints {function: {GPU: error}} as JSON.

usage: walk_nvml.py BINDING    pynvml, or py3nvml.py3nvml
"""

import importlib
import inspect
import json
import sys

#: Functions that take a GPU but do not query it.
CHANGES = (
    "Clear",
    "Reset",
    "Set",
    "Validate",
    "Remove",
    "Create",
    "Destroy",
    "Register",
    "Freeze",
    "Power",
    "Workload",
)


def questions(binding):
    """Yield the functions that take only a device."""
    for name, function in sorted(vars(binding).items()):
        if not name.startswith("nvmlDevice") or not inspect.isfunction(function):
            continue
        if any(name.startswith("nvmlDevice" + word) for word in CHANGES):
            continue
        needed = [p for p in inspect.signature(function).parameters.values() if p.default is p.empty]
        if [p.name for p in needed] in (["handle"], ["device"]):
            yield name, function


def main():
    binding = importlib.import_module(sys.argv[1])
    binding.nvmlInit()
    found = {}
    for index in range(binding.nvmlDeviceGetCount()):
        gpu = binding.nvmlDeviceGetHandleByIndex(index)
        for name, function in questions(binding):
            try:
                function(gpu)
                answer = "answered"
            except binding.NVMLError as error:
                # Class names differ between bindings, but NVML's error texts are the same.
                answer = str(error)
            except Exception as error:
                answer = type(error).__name__ + ": " + str(error)
            found.setdefault(name, {})[index] = answer
    print(json.dumps(found))


main()
