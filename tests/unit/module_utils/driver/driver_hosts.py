# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Define hosts for the tests of the driver's rules and plans."""

from __future__ import annotations

from pathlib import Path

from ansible_collections.openfleet.gpu.plugins.module_utils.driver import model
from tests.unit import yaml_files

REPOSITORY = Path(__file__).parents[4]
DISTRIBUTIONS = {
    path.stem: yaml_files.read(path)["nvidia_driver__distribution"]
    for path in sorted((REPOSITORY / "roles" / "nvidia_driver" / "vars" / "distributions").glob("*.yml"))
}
TRUSTED = "EB693B3035CD5710E231E123A4B469963BF863CC"
PASCAL, VOLTA, TURING, AMPERE, HOPPER, GRACE, BLACKWELL = "1b38", "1db6", "1eb8", "20b2", "2330", "2342", "2901"


def gpus(*ids):
    return tuple(model.Gpu("0000:%02x:00.0" % number, device_id) for number, device_id in enumerate(ids, 16))


def host(distribution="debian-12", **more):
    known = {"architecture": "x86_64", "kernel": "6.1.0-40-amd64", "gpus": gpus(HOPPER), "headers": True}
    return model.Host(distribution, **{**known, **more})


def packages(version, *names, held=True):
    return tuple(model.Package(name, version, held) for name in names)


HEADLESS = ("nvidia-driver-cuda", "nvidia-kernel-open-dkms", "nvidia-persistenced")


def finished(version="580.95.05", names=HEADLESS, **more):
    """Return a host in the desired state: its modules are loaded and its services run."""
    units = {"nvidia-persistenced.service": model.Unit(True, True, True)}
    known = {
        "packages": packages(version + "-1", *names),
        "loaded": version,
        "on_disk": version,
        "library": version,
        "units": units,
        "key_fingerprints": (TRUSTED,),
    }
    return host(**{**known, **more})
