# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test vgpu-run in a shell.

The tests check environments, and commands that vgpu-run refuses because they would have no quota.
"""

from __future__ import annotations

import os
import shutil
import subprocess

import pytest

from tests.integration.vgpu_limiter.vgpu_limiter_host import FILES, write_source

RUN = FILES / "vgpu-run"
SHELLS = [shell for shell in (["sh"], ["dash"], ["bash", "--posix"], ["busybox", "sh"]) if shutil.which(shell[0])]
GPUS = ("GPU-5c89c6f5-8b09-4d4b-a1a4-9ab2d7f9b6d0", "GPU-77aa0f14-16e2-4b0e-8c53-5b4b0cbb8f04")
QUOTA = (
    """# Of the tenant notebook-a; written by openfleet.gpu, changed by gpu_layout.
version 1
tenant notebook-a
policy burst
priority 2
gpu %s memory 8589934592 sm 30 seat 0
gpu %s memory 0 sm 100 seat 3
"""
    % GPUS
)


class Tenants:
    """A root directory with tenants, and vgpu-run for that root."""

    def __init__(self, host, library, shell) -> None:
        self.host, self.library, self.shell = host, library, shell
        self.environment = {"PATH": os.environ["PATH"], "OPENFLEET_VGPU_ROOT": str(host.root)}

    def add(self, name: str, environment: str | None = None, quota: str = QUOTA) -> None:
        if environment is None:
            environment = f"OPENFLEET_VGPU={name}\nLD_PRELOAD={self.library}\nCUDA_VISIBLE_DEVICES={GPUS[0]}\n"
        self.host.tenant(name, env=environment, quota=quota)
        region = self.host.root / "run/openfleet-gpu/vgpu/tenants" / name / "region.1"
        region.parent.mkdir(parents=True)
        region.write_text("")

    def run(self, *words: str, **environment: str) -> subprocess.CompletedProcess:
        return subprocess.run(
            [*self.shell, str(RUN), *words],
            env={**self.environment, **environment},
            capture_output=True,
            text=True,
            check=False,
            timeout=180,
        )

    def variables(self, *words: str, **environment: str) -> dict[str, str]:
        done = self.run(*words, "env", "-0", **environment)
        assert done.returncode == 0 and done.stderr == "", done.stderr
        return dict(line.split("=", 1) for line in done.stdout.split("\0") if line)

    def refused(self, *words: str, **environment: str) -> str:
        """Return the error message of a refused command."""
        done = self.run(*words, **environment)
        assert (done.returncode, done.stdout) == (125, "")
        assert done.stderr.startswith("vgpu-run: ") and done.stderr.count("\n") == 1
        return done.stderr


@pytest.fixture(scope="session")
def libraries(tmp_path_factory):
    """Return two libraries for LD_PRELOAD: the limiter's stand-in and the user's."""
    folder = tmp_path_factory.mktemp("libraries")
    write_source(folder, "x")
    subprocess.run(["make", "-s", "-C", str(folder), "BUILD=build"], check=True)
    library = folder / "build" / "libopenfleet-vgpu.so"
    other = folder / "libother.so"
    shutil.copy(library, other)
    return str(library), str(other)


@pytest.fixture(params=SHELLS, ids=" ".join)
def tenants(request, host, libraries):
    found = Tenants(host, libraries[0], request.param)
    found.add("notebook-a")
    return found


def test_command_runs_as_the_tenant(tenants):
    seen = tenants.variables("notebook-a")
    assert seen["OPENFLEET_VGPU"] == "notebook-a"
    assert seen["LD_PRELOAD"] == tenants.library
    assert seen["CUDA_VISIBLE_DEVICES"] == GPUS[0]
    assert seen["PATH"] == os.environ["PATH"]


UNSHARE = ("unshare", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "--mount")
CAN_MOUNT = (
    shutil.which("unshare") and not subprocess.run([*UNSHARE, "true"], capture_output=True, check=False).returncode
)


@pytest.mark.skipif(not CAN_MOUNT, reason="this user cannot mount, not even in a private namespace")
def test_mounted_quota_is_used(tenants):
    """Use the mounted quota in a container, and refuse another tenant's name.

    Whatever name the user gives, the library uses the tenant whose folder is mounted.
    """
    tenants.add("notebook-b")
    folder = tenants.host.root / "etc/openfleet-gpu/vgpu/notebook-b"
    mount = [*UNSHARE, "sh", "-c", 'mount --bind "$1" "$1" && shift && exec "$@"', "sh", str(folder)]
    tenants.shell = [*mount, *tenants.shell]
    assert "another tenant's: notebook-b" in tenants.refused("notebook-a", "true")
    assert tenants.variables("notebook-b")["OPENFLEET_VGPU"] == "notebook-b"


def test_arguments_and_exit_status_of_the_command_are_unchanged(tenants):
    done = tenants.run("notebook-a", "sh", "-c", 'printf "[%s]" "$@"; exit 42', "sh", "a b", "", "*", "$HOME", "--list")
    assert (done.returncode, done.stdout, done.stderr) == (42, "[a b][][*][$HOME][--list]", "")
    assert tenants.run("notebook-a", "sh", "-c", "kill -9 $$").returncode == -9


def test_existing_preloads_stay(tenants, libraries):
    library, other = libraries
    assert tenants.variables("notebook-a", LD_PRELOAD=other)["LD_PRELOAD"] == f"{library}:{other}"


@pytest.mark.parametrize("separator", [":", " "])
def test_the_library_is_not_preloaded_twice(tenants, libraries, separator):
    both = separator.join(reversed(libraries))
    assert tenants.variables("notebook-a", LD_PRELOAD=both)["LD_PRELOAD"] == both


def test_tenant_file_is_not_executed(tenants):
    # Parse the file as systemd and container engines do: the value is everything after the first `=`.
    tenants.add("odd", "# a comment\n\nOPENFLEET_VGPU=odd\nX=$(touch x) `id` 'q\" = $HOME\nLAST=no newline")
    seen = tenants.variables("odd")
    assert seen["X"] == "$(touch x) `id` 'q\" = $HOME"
    assert seen["LAST"] == "no newline"
    assert "LD_PRELOAD" not in seen, "a tenant that another provider holds"


def test_slice_is_requested_from_systemd(tenants, tmp_path):
    tenants.add("a-b")
    # systemd escapes a dash as `\x2d`.
    tenants.host.tenant("a-b", slice="openfleet-vgpu-a\\x2db.slice\n")
    stand_in = tmp_path / "systemd-run"
    stand_in.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    stand_in.chmod(0o755)
    done = tenants.run("a-b", "python3", "-c", "x y", PATH=f"{tmp_path}:{os.environ['PATH']}")
    words = done.stdout.splitlines()
    assert "--slice=openfleet-vgpu-a\\x2db.slice" in words and "--scope" in words
    assert words[words.index("--") + 1 :] == ["python3", "-c", "x y"]


# --- refuse commands that would run without a quota ---------------------------------------------


def test_unknown_tenant_is_refused_with_the_known_ones(tenants):
    tenants.add("b")
    told = tenants.refused("nobody", "true")
    assert '"nobody"' in told and "b, notebook-a" in told


def test_host_without_tenants_is_an_error(tenants):
    shutil.rmtree(tenants.host.root / "etc")
    assert "none, add tenants to gpu_layout" in tenants.refused("notebook-a", "true")
    assert tenants.run("--list").stdout.splitlines()[1:] == []


@pytest.mark.parametrize("name", ["../notebook-a", "a/b", "..", ".", "a b", "*"])
def test_name_with_a_path_is_refused(tenants, name):
    assert "not a valid tenant name" in tenants.refused(name, "true")


def test_a_tenant_without_a_command(tenants):
    assert "missing command" in tenants.refused("notebook-a")


def test_without_its_library_no_command_runs(tenants):
    tenants.add("bare", "OPENFLEET_VGPU=bare\nLD_PRELOAD=/nowhere/libopenfleet-vgpu.so\n")
    assert "/nowhere/libopenfleet-vgpu.so cannot be read" in tenants.refused("bare", "true")


def test_without_its_region_no_command_runs(tenants):
    shutil.rmtree(tenants.host.root / "run")
    assert "systemd-tmpfiles --create" in tenants.refused("notebook-a", "true")


def test_renamed_tenant_keeps_its_region(tenants):
    """Accept a file whose last line has no newline."""
    quota = QUOTA.replace("tenant notebook-a", "tenant notebook-b") + "counted_as notebook-a"
    for text in (quota, quota + "\n"):
        tenants.host.tenant("notebook-b", env=f"OPENFLEET_VGPU=notebook-b\nLD_PRELOAD={tenants.library}\n", quota=text)
        assert tenants.variables("notebook-b")["OPENFLEET_VGPU"] == "notebook-b"
    (tenants.host.root / "run/openfleet-gpu/vgpu/tenants/notebook-a/region.1").unlink()
    assert "tenants/notebook-a/region.1 is missing" in tenants.refused("notebook-b", "true")


@pytest.mark.parametrize("mode", [0o4755, 0o2755])
def test_program_without_preload_is_refused(tenants, tmp_path, mode):
    program = tmp_path / "become"
    shutil.copy(shutil.which("true"), program)
    program.chmod(mode)
    told = tenants.refused("notebook-a", "become", PATH=f"{tmp_path}:{os.environ['PATH']}")
    assert str(program) in told and "Put vgpu-run behind it" in told
    assert str(program) in tenants.refused("notebook-a", str(program))


@pytest.mark.parametrize("line", ["no variable", "1=x", "a-b=c", "=x"])
def test_damaged_file_is_reported(tenants, line):
    tenants.add("spoilt", f"OPENFLEET_VGPU=spoilt\n{line}\n")
    assert f'"{line}" is not a variable' in tenants.refused("spoilt", "true")


def test_missing_command_is_an_error(tenants):
    done = tenants.run("notebook-a", "no-such-command")
    assert done.returncode == 127 and "no-such-command" in done.stderr


# --- help and list ------------------------------------------------------------------------------


@pytest.mark.parametrize("word", ["--help", "-h"])
def test_help(tenants, word):
    done = tenants.run(word)
    assert done.returncode == 0 and done.stdout.startswith("usage: vgpu-run TENANT COMMAND")


@pytest.mark.parametrize("words", [[], ["--nonsense"], [""]])
def test_wrong_usage_prints_the_usage(tenants, words):
    done = tenants.run(*words)
    assert (done.returncode, done.stdout) == (125, "") and done.stderr.startswith("usage: vgpu-run")


def test_list_shows_tenants_with_quotas(tenants):
    other = QUOTA.replace("burst", "fixed").split("gpu ")
    tenants.add("z", quota=f"{other[0]}unknown key of a later version\ngpu {other[2]}")
    head, *rows = [line.split() for line in tenants.run("--list").stdout.splitlines()]
    assert head == ["TENANT", "POLICY", "PRIORITY", "GPU", "MIB", "SM"]
    assert rows == [
        ["notebook-a", "burst", "2", GPUS[0], "8192", "30%"],
        ["notebook-a", "burst", "2", GPUS[1], "-", "100%"],
        ["z", "fixed", "2", GPUS[1], "-", "100%"],
    ]
