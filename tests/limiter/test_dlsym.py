# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test dlsym from every kind of caller.

For hooked names, it returns the limiter's function. For all other names, it returns the same result as without the
limiter.
"""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.limiter.limiter_lab import DEADLINE, LIBRARY, Tenant

DRIVER, PROGRAM, WRAPPER = "libcuda.so.1", "linked", "libnext.so"


@pytest.fixture
def answers(tenant: Tenant) -> object:
    """Run client/linked.c with preloaded libraries. Return its lines as a dictionary."""
    wrapper = tenant.built.program(WRAPPER, str(Path(__file__).parent / "client/next.c"), "-shared", "-fPIC")
    linked = tenant.built.program("linked", f"-L{tenant.built.stub}", f"-l:{DRIVER}")
    limiter = str(tenant.built.library)
    tenant.quota(1 << 20)

    def run(*preload: str, size: int = 1 << 20, **environment: str) -> dict[str, str]:
        paths = {"limiter": limiter, "wrapper": str(wrapper)}
        names = " ".join(paths.get(name, name) for name in preload)
        done = subprocess.run(
            [str(linked), str(size)],
            env={**tenant.environment(preload=False), "LD_PRELOAD": names, **environment},
            capture_output=True,
            text=True,
            timeout=DEADLINE,
        )
        assert (done.returncode, done.stderr) == (0, "")
        return dict(line.split(": ", 1) for line in done.stdout.splitlines())

    return run


def test_a_linked_program_is_limited(answers: object) -> None:
    assert answers("limiter")["linked"] == "0"
    assert answers("limiter", size=(1 << 20) + 1)["linked"] == "2"
    assert answers(size=(1 << 20) + 1)["linked"] == "0"


def test_each_way_to_ask(answers: object) -> None:
    found = answers("limiter")
    assert found["default"] == found["next of the program"] == found["the driver's"] == LIBRARY
    assert found["by dlsym of dlsym"] == found["by the C library's"] == LIBRARY
    assert found["the driver's cuInit"] == DRIVER
    assert found["in the C library"] == "-"


def test_a_wrapper_before_us_finds_us_twice(answers: object) -> None:
    found = answers("wrapper", "limiter", size=(1 << 20) + 1)
    assert found["next of the wrapper"] == found["behind the wrapper"] == f"{LIBRARY} twice"
    assert found["linked"] == "2"


def test_a_wrapper_behind_us_finds_the_driver_twice(answers: object) -> None:
    found = answers("limiter", "wrapper", size=(1 << 20) + 1)
    assert found["linked"] == "2"
    assert found["behind the wrapper"] == f"{DRIVER} twice"


def test_other_names_are_found_as_without_us(answers: object) -> None:
    for order in (("limiter", "wrapper"), ("wrapper", "limiter")):
        with_us, without = answers(*order), answers("wrapper")
        for key in (
            "nothing",
            "next malloc of the wrapper",
            "default malloc",
            "in the C library",
            "the driver's cuInit",
        ):
            assert with_us[key] == without[key], (order, key)


def test_at_another_path_and_under_another_name(answers: object, tenant: Tenant, tmp_path: Path) -> None:
    """Load the library from another folder, by a relative path and a versioned name.

    Upgrades install the library with a versioned name.
    """
    for copy in (tmp_path / "vgpu" / f"{LIBRARY}.1.2.3", tmp_path / "x.so"):
        copy.parent.mkdir(exist_ok=True)
        shutil.copy(tenant.built.library, copy)
        assert answers(str(copy), size=(1 << 20) + 1)["linked"] == "2"
        assert answers(str(copy))["the driver's"] == copy.name


def test_loaded_twice_it_still_limits(answers: object, tmp_path: Path, tenant: Tenant) -> None:
    """Load the library through /etc/ld.so.preload and through LD_PRELOAD.

    One path is the link, and the other path is the versioned file.
    """
    copy = tmp_path / "copy.so"
    shutil.copy(tenant.built.library, copy)
    assert answers("limiter", str(copy), size=(1 << 20) + 1)["linked"] == "2"
    assert answers("limiter", str(copy))["linked"] == "0"
    assert answers("limiter", "limiter")["linked"] == "0"
