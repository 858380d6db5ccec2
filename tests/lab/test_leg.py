# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that an interrupted leg of `make test` removes its lab hosts.

Hosts of other legs and checkouts must stay.
"""

from __future__ import annotations

import os
import subprocess

import pytest

from tests.lab.lab_fixtures import REPOSITORY, container_name

PREFIX = "openfleet-leg-test-%s-" % (os.environ.get("OPENFLEET_CHECKOUT") or "local")
LEG = "made-up"


def podman(*arguments: str) -> str:
    return subprocess.run(["podman", *arguments], capture_output=True, text=True, check=True).stdout.strip()


@pytest.fixture
def containers(lab_host):
    """Start containers with the labels of lab hosts.

    Two containers belong to the leg. The others belong to another leg, to another checkout, or to no leg.
    """
    lab_host("l40s")
    image = podman("inspect", "--format", "{{.ImageName}}", container_name("l40s"))
    labels = {
        "one": (REPOSITORY, LEG),
        "two": (REPOSITORY, LEG),
        "leg": (REPOSITORY, "another"),
        "checkout": ("/another", LEG),
        "demo": (REPOSITORY, ""),
    }
    try:
        for name, (checkout, leg) in labels.items():
            label = ["--label", f"openfleet.checkout={checkout}", "--label", f"openfleet.leg={leg}"]
            podman("run", "--detach", "--network=none", "--name", PREFIX + name, *label, image, "sleep", "infinity")
        yield
    finally:
        podman("rm", "--force", "--time=0", "--ignore", *(PREFIX + name for name in labels))


def running() -> set[str]:
    names = podman("ps", "--all", "--format", "{{.Names}}", "--filter", f"name=^{PREFIX}").splitlines()
    return {name.removeprefix(PREFIX) for name in names}


@pytest.mark.parametrize("target", [LEG, "leg-" + LEG])
def test_only_the_hosts_of_an_ended_leg_are_removed(containers, target):
    subprocess.run([str(REPOSITORY / "tests" / "leg"), "remove-hosts", target], check=True, stdin=subprocess.DEVNULL)
    left = {"leg", "checkout", "demo"}
    assert running() == left


def test_lab_host_has_its_labels(lab_host):
    lab_host("l40s")
    template = '{{index .Config.Labels "openfleet.checkout"}}|{{index .Config.Labels "openfleet.leg"}}'
    labels = podman("inspect", "--format", template, container_name("l40s"))
    assert labels == f"{REPOSITORY}|{os.environ.get('OPENFLEET_LEG', '')}"
