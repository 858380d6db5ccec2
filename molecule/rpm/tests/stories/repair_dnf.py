# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Plan and repair this host's packages like a role. Print the results as JSON.

The first argument is the name of the role.
"""

from __future__ import annotations

import importlib
import json
import subprocess
import sys

COLLECTION = "ansible_collections.openfleet.gpu.plugins.module_utils"
Dnf = importlib.import_module(COLLECTION + ".packages.dnf").Dnf
rules = importlib.import_module(COLLECTION + ".toolkit.rules")
toolkit = Dnf(rules.OWNER)
manager = Dnf(importlib.import_module("%s.%s.rules" % (COLLECTION, sys.argv[1])).OWNER)


def versions() -> dict:
    form = "%{NAME} %{VERSION}\\n"
    done = subprocess.run(["rpm", "-qa", "--queryformat", form], stdout=subprocess.PIPE, text=True, check=True)
    found = {}
    for line in done.stdout.splitlines():
        name, version = line.split()
        found.setdefault(name, []).append(version)
    return found


def plan(version: str):
    arguments = [toolkit.exactly % (name, version) for name in rules.PACKAGES]
    return toolkit.plan_install(toolkit.installed(rules.PACKAGES), arguments, rules.is_part)


def broken() -> list:
    return sorted(package.name for package in toolkit.installed(rules.PACKAGES) if package.broken)


result = {"broken": broken()}
# Each role makes its plan before it repairs packages.
planned = plan("1.18.2-1")
result["removed"] = planned.removed
result["repair"] = manager.repair()
result["repaired"] = versions()
result["still_broken"] = broken()
result["install"] = toolkit.download(planned) or toolkit.install(planned)
result["installed"] = versions()
planned = plan("1.17.8-1")
result["downgrade"] = toolkit.download(planned) or toolkit.install(planned)
result["downgraded"] = versions()
result["check"] = subprocess.run(["dnf", "--quiet", "check"], stdout=subprocess.PIPE, text=True).stdout
print(json.dumps(result))
