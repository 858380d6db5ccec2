# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Packages: one version, held; changed and removed; from repositories that are not to be trusted, and from files."""

from __future__ import annotations

import hashlib
import re

import pytest
from role_runs import MIRROR, run_role

PACKAGES = (
    "libnvidia-container-tools",
    "libnvidia-container1",
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
)
OURS = (
    "/etc/apt/*/openfleet-container-toolkit* /etc/systemd/system/nvidia-cdi-refresh.service.d /var/run/cdi/nvidia.yaml"
)


def versions(host) -> set[str]:
    found = host.run("dpkg-query --show --showformat '${db:Status-Abbrev}${Version}\\n' " + " ".join(PACKAGES))
    return set(found.stdout.split("\n")) - {""}


def repository(name: str) -> dict:
    return {"container_toolkit_repository_url": "http://127.0.0.1:8080/toolkit/%s/{family}/{architecture}" % name}


def state(host) -> str:
    """All that a dry run, or a run that is refused, must leave alone."""
    return host.check_output(
        "dpkg -l | sha256sum; apt-mark showhold; find /etc /var/lib/apt/lists /var/cache/apt/archives -type f "
        "-exec sha256sum {} + | sort | sha256sum; find /tmp -maxdepth 1 -name 'openfleet*'"
    )


def test_a_host_that_is_right_costs_one_execution(boxes):
    run = run_role("boxes")
    assert (run.changed, run.executions) == (False, 1)
    assert versions(boxes) == {"hi 1.18.2-1"}
    assert sorted(boxes.check_output("apt-mark showhold").split()) == sorted(PACKAGES)


def test_held_packages_survive_an_upgrade(boxes, finished):
    finished("boxes", container_toolkit_version="1.18.1")
    boxes.check_output("apt-get --yes --quiet upgrade && apt-get --yes --quiet dist-upgrade")
    assert versions(boxes) == {"hi 1.18.1-1"}


def test_a_dry_run_foretells_a_change_of_version_and_touches_nothing(boxes, finished):
    """To a release that has no units of its own, and back."""
    before = state(boxes)
    older = {"container_toolkit_version": "1.17.8"}
    foretold = run_role("boxes", "--check", **older)
    assert state(boxes) == before
    finished("boxes")
    assert run_role("boxes", **older).steps == foretold.steps
    assert "write /etc/systemd/system/nvidia-cdi-refresh.path" in foretold.steps
    assert versions(boxes) == {"hi 1.17.8-1"}
    assert run_role("boxes", **older).steps == []
    # The unit from here works as the toolkit's own does.
    boxes.check_output("rm /var/run/cdi/nvidia.yaml && systemctl restart nvidia-cdi-refresh.service")
    assert boxes.file("/var/run/cdi/nvidia.yaml").exists and not boxes.file("/var/run/cdi/nvidia.new").exists
    foretold = run_role("boxes", "--check")
    assert run_role("boxes").steps == foretold.steps
    assert not boxes.file("/etc/systemd/system/nvidia-cdi-refresh.service").exists
    assert versions(boxes) == {"hi 1.18.2-1"}


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (repository("unsigned"), "the repository cannot be used: .*not signed"),
        (repository("foreign"), "the repository cannot be used: .*(NO_PUBKEY|couldn't be verified|not signed)"),
        (repository("nowhere"), "the repository cannot be used"),
        ({"container_toolkit_repository_fingerprints": ["0" * 40]}, "the key has the fingerprint .*, and 0000"),
        # Another key is to be trusted than the one that the host has, and its address does not answer.
        (
            {
                "container_toolkit_repository_fingerprints": ["0" * 40],
                "container_toolkit_repository_key_url": "http://127.0.0.1:1/key",
            },
            "key cannot be fetched",
        ),
        ({"container_toolkit_version": "1.99.0"}, r"There is: 1\.18\.2-1, 1\.18\.1-1, 1\.18\.0-1, 1\.17\.8-1"),
        ({"container_toolkit_version": "1.18"}, "is no version of the toolkit"),
    ],
)
def test_what_is_not_to_be_trusted_or_not_to_be_had_changes_nothing(boxes, asked, message):
    before = state(boxes)
    said = run_role("boxes", fails=True, **{"container_toolkit_version": "1.18.1", **asked})
    assert re.search(message, said), said
    assert state(boxes) == before


def test_a_mirror_that_dies_half_way_leaves_the_old_toolkit_and_the_next_run_cures_it(boxes, finished):
    boxes.check_output("rm -f /var/cache/apt/archives/*.deb && touch /srv/mirror/.dies")
    try:
        said = run_role("boxes", fails=True, container_toolkit_version="1.18.1")
    finally:
        boxes.check_output("rm /srv/mirror/.dies")
    assert said.startswith("packages: they could not be fetched")
    assert versions(boxes) == {"hi 1.18.2-1"}
    assert boxes.check_output("dpkg --audit") == ""
    finished("boxes", container_toolkit_version="1.18.1")
    assert versions(boxes) == {"hi 1.18.1-1"}


def files(version: str) -> list[dict]:
    folder = MIRROR / "stable" / "deb" / "amd64"
    paths = sorted(folder.glob(f"*_{version}-1_amd64.deb"))
    return [{"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for path in paths]


def test_without_any_repository_it_comes_from_files(boxes, finished):
    """The mirror is gone: nothing but the files is there to install from."""
    boxes.check_output("systemctl stop mirror")
    asked = {
        "container_toolkit_source": "files",
        "container_toolkit_version": "1.18.1",
        "container_toolkit_files": files("1.18.1"),
    }
    try:
        wrong = [{**file, "sha256": "0" * 64} for file in asked["container_toolkit_files"]]
        said = run_role("boxes", fails=True, **{**asked, "container_toolkit_files": wrong})
        assert "its SHA-256 is" in said
        assert versions(boxes) == {"hi 1.18.2-1"}
        run_role("boxes", **asked)
        assert versions(boxes) == {"hi 1.18.1-1"}
        assert not boxes.file("/etc/apt/sources.list.d/openfleet-container-toolkit.list").exists
        assert run_role("boxes", **asked).steps == []
    finally:
        boxes.check_output("systemctl start mirror")
        finished("boxes")


def test_a_package_of_others_that_needs_it_stops_the_removal(boxes):
    boxes.check_output(
        "mkdir -p /tmp/other/DEBIAN && printf 'Package: nvidia-docker2\\nVersion: 2.14.0-1\\nArchitecture: all\\n"
        "Maintainer: lab\\nDepends: nvidia-container-toolkit\\nDescription: a package of others\\n' >/tmp/other/DEBIAN/control "
        "&& dpkg-deb --build /tmp/other && dpkg --install /tmp/other.deb"
    )
    try:
        said = run_role("boxes", playbook="reset.yml", fails=True)
        assert said.startswith(
            "container_toolkit_allow_removal: to remove the toolkit, nvidia-docker2 would have to be"
        )
        assert versions(boxes) == {"hi 1.18.2-1"}
    finally:
        boxes.check_output("dpkg --purge nvidia-docker2 && rm -r /tmp/other /tmp/other.deb")


def test_reset_takes_it_away_and_a_dry_run_of_either_way_is_right(boxes):
    foretold = run_role("boxes", "--check", playbook="reset.yml")
    assert run_role("boxes", playbook="reset.yml").steps == foretold.steps
    assert versions(boxes) == set()
    assert boxes.run(f"ls -d {OURS}").stdout == ""
    assert boxes.check_output("apt-mark showhold") == ""
    assert boxes.run("systemctl is-enabled nvidia-cdi-refresh.path").rc != 0
    assert not boxes.file("/var/lib/openfleet-gpu/container-toolkit.json").exists
    assert run_role("boxes", playbook="reset.yml").steps == []
    before = state(boxes)
    foretold = run_role("boxes", "--check")
    assert state(boxes) == before
    assert run_role("boxes").steps == foretold.steps
    assert run_role("boxes").steps == []
