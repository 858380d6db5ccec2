# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define hosts for tests of the container toolkit's plan, engines and packages."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.openfleet.gpu.plugins.module_utils.packages.model import Package
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit import files, plan, rules
from ansible_collections.openfleet.gpu.plugins.module_utils.toolkit.model import Host, Request, Unit

REPOSITORY = Path(__file__).parents[4]
ROLE = REPOSITORY / "roles" / "container_toolkit"
TRUSTED = ("C95B321B61E88C1809C4F759DDCAE044F796ECB0",)
URL = "https://mirror.example.org/stable/deb/amd64"
RUNNING = Unit(enabled=True, active=True, start="first", children_stay=True)
DOCKER, CONTAINERD, CRIO, _PODMAN = rules.ENGINES
ASKED = Request("1.18.2")


def wanted(request, manager="apt"):
    own = bool(request.version) and not rules.keeps_specification(request.version)
    return files.wanted(manager, request.source, URL, request.cdi, own, {})


def packages(version="1.18.2-1", held=True, **more):
    return tuple(Package(name, version, held, **more) for name in rules.PACKAGES)


def right(request=ASKED, **more):
    """Return a host in the requested state."""
    units = dict.fromkeys((rules.REFRESH_PATH, rules.REFRESH_SERVICE), RUNNING)
    known = {
        "packages": packages(),
        "files": wanted(request),
        "key_fingerprints": TRUSTED,
        "units": {**units, **more.pop("units", {})},
        "driver": True,
        "specs": (files.SPECIFICATION,),
    }
    return Host("apt", **{**known, **more})


def make(host, request=ASKED, version="1.18.2-1"):
    return plan.present(host, request, version, wanted(request), TRUSTED)


def kinds(made):
    return [step.kind for step in made.steps]
