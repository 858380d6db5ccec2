# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Repair this host's packages like a role, and print problems and repairs as JSON.

The first argument is the name of the role.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

COLLECTION = "ansible_collections.openfleet.gpu.plugins.module_utils"
toolkit = importlib.import_module(COLLECTION + ".toolkit.dnf").Dnf()
manager = importlib.import_module("%s.%s.dnf" % (COLLECTION, sys.argv[1])).Dnf()


def versions() -> dict:
    form = "%{NAME} %{VERSION}\\n"
    done = subprocess.run(["rpm", "-qa", "--queryformat", form], stdout=subprocess.PIPE, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        name, version = line.split()
        found.setdefault(name, []).append(version)
    return found


result = {"broken": sorted(package.name for package in toolkit.packages() if package.broken)}
result["repair"] = manager.repair()
result["repaired"] = versions()
result["still_broken"] = [package.name for package in toolkit.packages() if package.broken]
result["install"] = toolkit.install("1.18.2-1")
result["installed"] = versions()
result["check"] = subprocess.run(["dnf", "--quiet", "check"], stdout=subprocess.PIPE, text=True).stdout
print(json.dumps(result))
