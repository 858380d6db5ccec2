# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the toolkit's packages.

The tests cover a held version, changes, removal, untrusted repositories and files. They run in order, and each test
starts with the state that the previous test left.
"""

from __future__ import annotations

import hashlib
import re

import pytest
from role_runs import MIRROR, Ask, Run, run_roles

PACKAGES = (
    "libnvidia-container-tools",
    "libnvidia-container1",
    "nvidia-container-toolkit",
    "nvidia-container-toolkit-base",
)
OURS = (
    "/etc/apt/*/openfleet-container-toolkit* /etc/systemd/system/nvidia-cdi-refresh.service.d /var/run/cdi/nvidia.yaml"
)


#: The command that versions() runs. A dry run or a refused run must not change the state that the command prints.
VERSIONS = "dpkg-query --show --showformat '${db:Status-Abbrev}${Version}\\n' " + " ".join(PACKAGES)
STATE = (
    "dpkg -l | sha256sum; apt-mark showhold; find /etc /var/lib/apt/lists /var/cache/apt/archives -type f "
    "-exec sha256sum {} + | sort | sha256sum; find /tmp -maxdepth 1 -name 'openfleet*'"
)


def versions(host) -> set[str]:
    return set(host.run(VERSIONS).stdout.split("\n")) - {""}


def repository(name: str) -> dict:
    return {"container_toolkit_repository_url": "http://127.0.0.1:8080/toolkit/%s/{family}/{architecture}" % name}


REFUSED = [
    (repository("unsigned"), "the repository cannot be used: .*not signed"),
    (repository("foreign"), "the repository cannot be used: .*(NO_PUBKEY|couldn't be verified|not signed)"),
    (repository("nowhere"), "the repository cannot be used"),
    (
        {"container_toolkit_repository_fingerprints": ["0" * 40]},
        "the key has the fingerprint .*, but the trusted fingerprint is 0000",
    ),
    # The requested key is not the host's key, and the address of the key does not respond.
    (
        {
            "container_toolkit_repository_fingerprints": ["0" * 40],
            "container_toolkit_repository_key_url": "http://127.0.0.1:1/key",
        },
        "key cannot be fetched",
    ),
    ({"container_toolkit_version": "1.99.0"}, r"Available: 1\.18\.2-1, 1\.18\.1-1, 1\.18\.0-1, 1\.17\.8-1"),
    ({"container_toolkit_version": "1.18"}, "is not a version of the toolkit"),
]


@pytest.fixture(scope="module")
def first_runs(boxes) -> tuple[str, list[Run]]:
    """Return the host's state, a run without changes, and one run for each of REFUSED.

    Each run records the state after it.
    """
    before = boxes.check_output(STATE)
    refused = (
        Ask({"container_toolkit_version": "1.18.1", **asked}, fails=True, then=STATE) for asked, _message in REFUSED
    )
    return before, run_roles("boxes", Ask(then=STATE), *refused)


def test_converged_host_costs_one_execution(boxes, first_runs):
    before, (run, *_refused) = first_runs
    assert (run.changed, run.executions, run.seen) == (False, 1, before)
    assert versions(boxes) == {"hi 1.18.2-1"}
    assert sorted(boxes.check_output("apt-mark showhold").split()) == sorted(PACKAGES)


@pytest.mark.parametrize("number", range(len(REFUSED)))
def test_untrusted_or_missing_packages_change_nothing(first_runs, number):
    before, (_right, *refused) = first_runs
    assert re.search(REFUSED[number][1], refused[number].failed), refused[number].failed
    assert refused[number].seen == before


def test_dry_run_predicts_a_version_change(boxes):
    """Change to a release that ships no units, then change back.

    Between the two changes, upgrades must not change the held packages.
    """
    before = boxes.check_output(STATE)
    older = {"container_toolkit_version": "1.17.8"}
    (foretold,) = run_roles("boxes", Ask(older), check=True)
    assert boxes.check_output(STATE) == before
    assert "write /etc/systemd/system/nvidia-cdi-refresh.path" in foretold.steps
    changed, again, back_foretold, back = run_roles(
        "boxes",
        Ask(older),
        # The role's unit does the same as the toolkit's unit.
        Ask(
            older,
            then="rm /var/run/cdi/nvidia.yaml; systemctl restart nvidia-cdi-refresh.service; ls /var/run/cdi; "
            f"apt-get --yes --quiet upgrade >&2; apt-get --yes --quiet dist-upgrade >&2; {VERSIONS} | sort -u",
        ),
        Ask(check=True),
        Ask(),
    )
    assert changed.steps == foretold.steps
    assert again.steps == []
    assert again.seen.split("\n") == ["nvidia.yaml", "hi 1.17.8-1"]
    assert back_foretold.steps == back.steps
    assert not boxes.file("/etc/systemd/system/nvidia-cdi-refresh.service").exists
    assert versions(boxes) == {"hi 1.18.2-1"}


def files(version: str) -> list[dict]:
    folder = MIRROR / "stable" / "deb" / "amd64"
    paths = sorted(folder.glob(f"*_{version}-1_amd64.deb"))
    return [{"path": str(path), "sha256": hashlib.sha256(path.read_bytes()).hexdigest()} for path in paths]


@pytest.mark.thorough
def test_failing_mirror_keeps_the_old_toolkit_and_files_replace_a_mirror(boxes):
    """Keep the old toolkit if the mirror fails, and then install from files.

    The next run completes the first change. For the second change, only the files are available.
    """
    asked = {"container_toolkit_source": "files", "container_toolkit_version": "1.18.0"}
    right = {**asked, "container_toolkit_files": files("1.18.0")}
    wrong = {**asked, "container_toolkit_files": [{**files("1.18.0")[0], "sha256": "0" * 64}]}
    older = {"container_toolkit_version": "1.18.1"}
    died, cured, bad, good, again, back, last = run_roles(
        "boxes",
        Ask(
            older,
            first="rm -f /var/cache/apt/archives/*.deb; touch /srv/mirror/.dies",
            then=f"rm /srv/mirror/.dies; {VERSIONS} | sort -u; dpkg --audit",
            fails=True,
        ),
        Ask(older, then=f"{VERSIONS} | sort -u; systemctl stop mirror"),
        Ask(wrong, then=f"{VERSIONS} | sort -u", fails=True),
        Ask(right, then=f"{VERSIONS} | sort -u; ls /etc/apt/sources.list.d"),
        Ask(right, then="systemctl start mirror"),
        Ask(),
        Ask(then=f"{VERSIONS} | sort -u"),
    )
    assert died.failed.startswith("packages: they could not be downloaded"), died.failed
    assert died.seen == "hi 1.18.2-1"
    assert cured.seen == "hi 1.18.1-1"
    assert "its SHA-256 is" in bad.failed and bad.seen == "hi 1.18.1-1"
    assert good.seen == "hi 1.18.0-1"
    assert again.steps == []
    assert back.steps and (last.steps, last.seen) == ([], "hi 1.18.2-1")


def test_reset_removes_the_toolkit_as_predicted(boxes):
    """Refuse the removal while another package depends on the toolkit."""
    boxes.check_output(
        "mkdir -p /tmp/other/DEBIAN && printf 'Package: nvidia-docker2\nVersion: 2.14.0-1\nArchitecture: all\n"
        "Maintainer: lab\nDepends: nvidia-container-toolkit\nDescription: a package of others\n' >/tmp/other/DEBIAN/control "
        "&& dpkg-deb --build /tmp/other && dpkg --install /tmp/other.deb"
    )
    needed, foretold, gone, again = run_roles(
        "boxes",
        Ask(
            entry="reset",
            then=f"{VERSIONS} | sort -u; dpkg --purge nvidia-docker2 >&2; rm -r /tmp/other /tmp/other.deb",
            fails=True,
        ),
        Ask(entry="reset", check=True),
        Ask(entry="reset"),
        Ask(entry="reset", then=STATE),
    )
    assert needed.failed.startswith(
        "container_toolkit_allow_removal: to remove the toolkit, nvidia-docker2 would have to be"
    )
    assert needed.seen == "hi 1.18.2-1"
    assert gone.steps == foretold.steps and gone.steps
    assert again.steps == []
    assert versions(boxes) == set()
    assert boxes.run(f"ls -d {OURS}").stdout == ""
    assert boxes.check_output("apt-mark showhold") == ""
    assert boxes.run("systemctl is-enabled nvidia-cdi-refresh.path").rc != 0
    assert not boxes.file("/var/lib/openfleet-gpu/container-toolkit.json").exists
    foretold, brought, right = run_roles("boxes", Ask(check=True, then=STATE), Ask(), Ask())
    assert foretold.seen == again.seen
    assert brought.steps == foretold.steps and brought.steps
    assert right.steps == []
