# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the module dcgm_exporter in a directory that represents a host."""

from __future__ import annotations

import configparser
import copy
import http.server
import json
import os
import stat
import subprocess
import threading
from pathlib import Path

import bcrypt
import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.holders.watchers import WATCHER_UNITS
from ansible_collections.openfleet.gpu.plugins.module_utils.install.exporter import managers, packages
from ansible_collections.openfleet.gpu.plugins.plugin_utils.python_pins import Pin
from tests.integration.exporter_installer import (
    DOCKER,
    EMBEDDED,
    ETC,
    LIB,
    PYTHON,
    UNIT,
    Installer,
    archive,
    files,
    peer,
    scrape,
)
from tests.integration.install_module import run_module
from tests.unit.peer_hosts import Processes
from tests.unit.wheel_files import wheel

OPENSSL = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "3"]


@pytest.fixture
def run(tmp_path):
    (tmp_path / "root").mkdir()
    return Installer(tmp_path / "root")


def test_exporter_unit_counts_as_monitoring():
    """Check that the exporter's unit counts as monitoring.

    The exporter has the GPUs open. If it did not count as monitoring, it would block every change of instances.
    """
    assert Path(UNIT).name in WATCHER_UNITS


def test_a_second_run_changes_nothing_and_keeps_the_hashes(run):
    assert run(EMBEDDED)["changed"] is True
    before = files(run.root)
    assert run(EMBEDDED) == {"changed": False, "done": [], "archive": ""}
    assert files(run.root) == before
    assert os.path.realpath(PYTHON).encode() in before[UNIT]
    assert (run.root / "srv/metrics").is_dir()


def test_hashes_are_bcrypt_and_match(run):
    run(EMBEDDED)
    config = json.loads((run.root / ETC / "web-config.json").read_text())
    assert config["tls_server_config"] == EMBEDDED["web_config"]["tls_server_config"]
    assert set(config["basic_auth_users"]) == {"prometheus", "ops"}
    for user, hashed in config["basic_auth_users"].items():
        assert bcrypt.checkpw(EMBEDDED["users"][user].encode(), hashed.encode())
        assert not bcrypt.checkpw(b"another", hashed.encode())
    assert len({hashed[:29] for hashed in config["basic_auth_users"].values()}) == 2, "each has its own salt"


def test_only_a_new_password_gets_a_new_hash(run):
    run(EMBEDDED)
    before = json.loads((run.root / ETC / "web-config.json").read_text())["basic_auth_users"]
    changed = copy.deepcopy(EMBEDDED)
    changed["users"]["ops"] = "another"
    assert run(changed)["done"] == [f"write {run.root / ETC / 'web-config.json'}"]
    after = json.loads((run.root / ETC / "web-config.json").read_text())["basic_auth_users"]
    assert after["prometheus"] == before["prometheus"]
    assert bcrypt.checkpw(b"another", after["ops"].encode())


def test_secrets_are_readable_for_root_only_and_never_printed(run):
    said = json.dumps(run(EMBEDDED))
    for name in ("web-config.json", "tls.key"):
        assert stat.S_IMODE((run.root / ETC / name).stat().st_mode) == 0o600
    (run.root / ETC / "tls.key").chmod(0o644)
    said += json.dumps(run(EMBEDDED))
    assert stat.S_IMODE((run.root / ETC / "tls.key").stat().st_mode) == 0o600
    for secret in ("correct horse", "größe", "k3y-m4terial", "$2b$"):
        assert secret not in said


def test_password_that_bcrypt_would_truncate_is_refused(run):
    long = dict(EMBEDDED, users={"a": "ö" * 37})
    assert "72 bytes" in run(long, failed=True)
    assert files(run.root) == {}
    run(dict(EMBEDDED, users={"a": "ö" * 36}))


def test_check_mode_predicts_a_run(run, tmp_path):
    bundle = dict(EMBEDDED, embedded=archive(tmp_path))
    said = run(bundle, "--check")
    assert files(run.root) == {}
    assert run(bundle)["done"] == said["done"]


def test_new_source_replaces_the_former(run, tmp_path):
    run(dict(EMBEDDED, embedded=archive(tmp_path)))
    assert (run.root / LIB / "packages/some_package/__init__.py").exists()
    run(DOCKER)
    # The record still lists the directory, so that the role can remove it.
    assert set(files(run.root)) == {UNIT, ETC + "/counters.csv", ETC + "/installed.json"}
    assert run(DOCKER)["changed"] is False


def test_quadlet_and_unit_never_coexist(run):
    quadlet = "etc/containers/systemd/dcgm-exporter.container"
    podman = dict(DOCKER, files={quadlet: {"content": "[Container]\n", "mode": "0644"}})
    run(DOCKER)
    run(podman)
    assert set(files(run.root)) == {quadlet}
    run(DOCKER)
    assert quadlet not in files(run.root)


def test_python_packages_are_installed_once_and_after_changes(run, tmp_path):
    embedded = archive(tmp_path)
    without = dict(EMBEDDED, embedded=dict(embedded, archive=""))
    asked = run(without)
    assert asked["archive"] == os.uname().machine
    assert files(run.root) == {}, "nothing is installed that could not run yet"
    run(dict(EMBEDDED, embedded=embedded))
    package = run.root / LIB / "packages/some_package/__init__.py"
    assert package.read_text() == "answer = 42\n"
    assert run(without)["changed"] is False
    assert run(dict(EMBEDDED, embedded=dict(embedded, stamp="two", archive="")))["archive"]
    package.write_text("old\n")
    run(dict(EMBEDDED, embedded=dict(embedded, stamp="two")))
    assert package.read_text() == "answer = 42\n"


def test_program_is_sent_only_if_missing_or_different(run, tmp_path):
    bundle = dict(EMBEDDED, embedded=archive(tmp_path))
    program = {"__init__.py": "", "collector.py": "one = 1\n"}

    def bring(sources, send=True):
        return json.loads(run_module("dcgm_exporter", run.root, bundle, sources, send=send).stdout)

    assert bring(program, send=False)["sources_needed"] and files(run.root) == {}
    assert bring(program)["changed"]
    assert bring(program, send=False)["done"] == []
    file = run.root / LIB / "openfleet_exporter/collector.py"
    file.write_text("damaged = 1\n")
    assert bring(program, send=False)["sources_needed"] and file.read_text() == "damaged = 1\n"
    assert bring(program)["done"] == [f"write {file}"] and file.read_text() == "one = 1\n"
    bundle["files"] = {path: file for path, file in bundle["files"].items() if not path.startswith(LIB)}
    assert bring({"__init__.py": ""})["done"] == [f"remove {file}"]


def test_files_of_former_settings_are_removed(run):
    run(EMBEDDED)
    plain = dict(EMBEDDED, web_config={}, users={})
    plain["files"] = {path: file for path, file in EMBEDDED["files"].items() if not path.endswith("tls.key")}
    run(plain)
    assert not (run.root / ETC / "tls.key").exists()
    assert not (run.root / ETC / "web-config.json").exists()


def test_unit_of_the_package_is_masked_before_installation_and_unmasked(run):
    """Check that the unit is masked during the installation.

    Without the mask, the unit would listen on all addresses as soon as the package is installed.
    """
    packages = dict(DOCKER, masked=["nvidia-dcgm-exporter.service"])
    assert run(dict(packages, packages=["no-such-package-anywhere"]), "--check")["done"][:2] == [
        "mask nvidia-dcgm-exporter.service",
        "install packages no-such-package-anywhere",
    ]
    assert files(run.root) == {}
    run(packages)
    link = run.root / "etc/systemd/system/nvidia-dcgm-exporter.service"
    assert os.readlink(link) == "/dev/null"
    # The unit is unmasked even if the inventory now has another source.
    run(dict(DOCKER, state="absent"))
    assert not link.is_symlink() and files(run.root) == {}


def test_existing_mask_and_directory_stay(run):
    link = run.root / "etc/systemd/system/nvidia-dcgm-exporter.service"
    link.parent.mkdir(parents=True)
    link.symlink_to("/dev/null")
    (run.root / "srv/metrics").mkdir(parents=True)
    run(dict(EMBEDDED, masked=[link.name]))
    run(dict(EMBEDDED, masked=[link.name], state="absent"))
    assert link.is_symlink() and (run.root / "srv/metrics").is_dir()


def test_unit_of_the_site_is_not_overwritten_by_the_mask(run):
    unit = run.root / "etc/systemd/system/nvidia-dcgm-exporter.service"
    unit.parent.mkdir(parents=True)
    unit.write_text("[Service]\n")
    assert str(unit) in run(dict(DOCKER, masked=[unit.name]), failed=True)
    assert unit.read_text() == "[Service]\n"


def test_repository_is_written_with_its_key_and_removed(run):
    apt = isinstance(managers.manager(), managers.Apt)
    repository = {"url": "https://example.org/cuda/debian12/x86_64", "key": "-----BEGIN PGP PUBLIC KEY BLOCK-----"}
    run(dict(DOCKER, repository=repository))
    source = packages.APT_SOURCE if apt else packages.DNF_SOURCE
    key = packages.APT_KEY if apt else packages.DNF_KEY
    text = (run.root / source).read_text()
    assert repository["url"] in text and "/" + key in text and "trusted=yes" not in text
    assert (run.root / key).read_text() == repository["key"]
    assert run(dict(DOCKER, repository=repository))["changed"] is False
    run(DOCKER)
    assert not (run.root / source).exists() and not (run.root / key).exists()


@pytest.mark.parametrize(("asked", "written"), [(True, "1"), (False, "0")])
def test_dnf_verifies_packages_and_metadata(asked, written):
    parser = configparser.ConfigParser()
    parser.read_string(packages.dnf_source("https://example.org/cuda/rhel9/x86_64", asked))
    assert dict(parser[packages.DNF_REPOSITORY]) == {
        "name": "DCGM, for openfleet.gpu",
        "baseurl": "https://example.org/cuda/rhel9/x86_64",
        "enabled": "1",
        "gpgcheck": "1",
        "repo_gpgcheck": written,
        "gpgkey": "file:///" + packages.DNF_KEY,
    }


class With(managers.Apt):
    """A stand-in for apt whose repository has one version of each package."""

    def __init__(self, version):
        self.version = version

    def installed_version(self, package):
        return self.version


@pytest.mark.parametrize("wanted", ["", "4.8.2", "4.8.2-1", "1:4.8.2-1"])
def test_available_version_is_found(wanted):
    assert packages.missing(With("1:4.8.2-1"), ["a-core", "an-exporter"], wanted) == []


def test_other_version_is_requested():
    assert packages.missing(With("4.8.2-1"), ["a-core", "an-exporter"], "4.8.20") == ["an-exporter=4.8.20-*"]
    assert managers.Dnf().asked("an-exporter", "4.8.20") == "an-exporter-4.8.20"


def test_absent_removes_only_files_of_the_role(run, tmp_path):
    other = run.root / "etc/openfleet-gpu/layout.json"
    other.parent.mkdir(parents=True)
    other.write_text("{}")
    run(dict(EMBEDDED, embedded=archive(tmp_path)))
    state = run.root / "var/lib/openfleet-gpu-exporter"
    state.mkdir(parents=True)
    (state / "gpus.json").write_text("{}")
    absent = dict(EMBEDDED, state="absent", files={})
    said = run(absent, "--check")
    assert run(absent)["done"] == said["done"]
    assert set(files(run.root)) == {"etc/openfleet-gpu/layout.json"}
    assert not (run.root / "srv/metrics").exists()
    assert run(absent)["changed"] is False


def test_directory_with_files_of_others_stays(run):
    run(EMBEDDED)
    (run.root / "srv/metrics/others.prom").write_text("up 1\n")
    run(dict(EMBEDDED, state="absent", files={}))
    assert set(files(run.root)) == {"srv/metrics/others.prom"}


def test_packages_of_an_index_are_verified_by_hashes(run, tmp_path, monkeypatch):
    """Install with the real pip from a folder that serves as index."""
    index = tmp_path / "index"
    index.mkdir()
    pin = Pin("some-package", "1.0", (wheel(index, "some-package", "1.0"),))
    for name, value in (("PIP_NO_INDEX", "1"), ("PIP_FIND_LINKS", str(index))):
        monkeypatch.setenv(name, value)
    embedded = {"source": "index", "stamp": "one", "requirements": str(pin), "index_url": "", "archive": ""}
    good = dict(EMBEDDED, embedded=embedded)
    folder = run.root / LIB / "packages"
    wheel(index, "some-package", "1.0", code="import os")
    said = run(good, failed=True)
    assert "DO NOT MATCH THE HASHES" in said and "some-package" in said
    assert not folder.exists() and not (run.root / UNIT).exists()
    wheel(index, "some-package", "1.0")
    run(good)
    assert (folder / "some_package.py").exists()
    unhashed = dict(embedded, stamp="two", requirements="some-package==1.0\n")
    assert "--require-hashes mode" in run(dict(EMBEDDED, embedded=unhashed), failed=True)
    assert (folder / ".requirements").read_text() == "one"


HEALTH = {"address": "127.0.0.1", "certificate": "", "users": {}, "timeout": 0, "engine": ""}
OWN = "/system.slice/dcgm-exporter.service"


@pytest.fixture
def processes(tmp_path, monkeypatch):
    """Return a view of this machine's processes.

    In it, the test sets their cgroups.
    """
    return Processes(tmp_path / "proc", monkeypatch, peer)


def test_health_reflects_a_scrape(host, start, processes):
    host.create([{"model": "H100-80GB", "count": 1}])
    exporter = start()
    processes.add(exporter.process.pid, OWN)
    assert scrape.problem(dict(HEALTH, port=exporter.port)) == ""
    # The configuration requires a password, but the exporter answers clients without one.
    assert "status 200, which should be 401" in scrape.problem(dict(HEALTH, port=exporter.port, users={"a": "b"}))
    exporter.stop()
    assert "does not answer" in scrape.problem(dict(HEALTH, port=exporter.port))


def test_exporter_without_gpus_is_unhealthy(processes):
    class Empty(http.server.BaseHTTPRequestHandler):
        def do_GET(self):
            self.send_response(200)
            self.end_headers()
            self.wfile.write(b"# TYPE openfleet_gpu_info gauge\nup 1\n")

        def log_message(self, *arguments):
            pass

    processes.add(os.getpid(), OWN)
    with http.server.HTTPServer(("127.0.0.1", 0), Empty) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        try:
            assert "without samples of a GPU" in scrape.problem(dict(HEALTH, port=server.server_port))
        finally:
            server.shutdown()


def certificates(folder, *names):
    for name in names:
        subprocess.run(
            [*OPENSSL, "-keyout", f"{name}.key", "-out", f"{name}.crt", "-subj", "/CN=gpu"],
            cwd=folder,
            check=True,
            capture_output=True,
        )


def test_health_with_tls_and_passwords(host, start, processes):
    host.create([{"model": "H100-80GB", "count": 1}])
    certificates(host.folder, "tls", "other")
    config = host.folder / "web-config"
    tls = {"cert_file": str(host.folder / "tls.crt"), "key_file": str(host.folder / "tls.key")}
    users = {"a": bcrypt.hashpw(b"b", bcrypt.gensalt(4)).decode()}
    config.write_text(json.dumps({"tls_server_config": tls, "basic_auth_users": users}))
    exporter = start(web_config=str(config))
    processes.add(exporter.process.pid, OWN)
    health = dict(HEALTH, port=exporter.port, certificate=str(host.folder / "tls.crt"), users={"a": "b"})
    assert scrape.problem(health) == ""
    assert "status 401" in scrape.problem(dict(health, users={"a": "c"}))
    renewed = dict(health, certificate=str(host.folder / "other.crt"))
    assert "another certificate" in scrape.problem(renewed)
    # An old certificate is a reason for a run to restart the exporter.
    assert scrape.certificate_is_old({"health": renewed}) and not scrape.certificate_is_old({"health": health})
    # The process is the exporter but not part of the unit, as after a manual start.
    processes.add(exporter.process.pid, "/user.slice/user-0.slice/session-1.scope")
    assert f"held by pid {exporter.process.pid} " in scrape.problem(health)
