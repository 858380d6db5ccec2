# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Bundle Python packages and the collection with the real pip and ansible-galaxy.

The tests use no network.
"""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile

import pytest
import yaml


def wheel(folder, name, version, requires="", code=""):
    """Write a minimal wheel, and return its SHA-256."""
    about = "%s-%s.dist-info/" % (name, version)
    path = folder / ("%s-%s-py3-none-any.whl" % (name, version))
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("%s.py" % name, "VERSION = %r\n%s\n" % (version, code))
        metadata = "Metadata-Version: 2.1\nName: %s\nVersion: %s\n" % (name, version)
        archive.writestr(about + "METADATA", metadata + ("Requires-Dist: %s\n" % requires if requires else ""))
        archive.writestr(
            about + "WHEEL", "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(about + "RECORD", "")
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.fixture
def index(tmp_path, monkeypatch):
    """Replace the package index by a local folder for pip."""
    folder = tmp_path / "index"
    folder.mkdir()
    wheel(folder, "nvidia_ml_py", "1.2.3")
    wheel(folder, "fleet_tool", "2.0", "fleet-helper>=1")
    wheel(folder, "fleet_helper", "1.5")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    return folder


def install(archive, folder):
    command = [
        sys.executable,
        "-m",
        "ansible",
        "galaxy",
        "collection",
        "install",
        "--offline",
        "--force",
        "-p",
        str(folder),
    ]
    done = subprocess.run(
        [*command, str(archive)], stdin=subprocess.DEVNULL, capture_output=True, encoding="utf-8", check=False
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.thorough
def test_controller_packages_include_dependencies(site, index, tmp_path):
    (tmp_path / "requirements.txt").write_text("# the controller's\nfleet-tool==2.0\n")
    site.variables["gpu_bundle_parts"] = ["controller"]
    site.variables["gpu_bundle_requirements"] = str(tmp_path / "requirements.txt")
    # If the request has no hashes, bundle.yml trusts the index's files, and records their hashes for the air-gapped
    # side.
    assert "without hashes" in site.make()
    names = {path.name for path in (site.bundle / "python").iterdir()}
    assert names == {"fleet_tool-2.0-py3-none-any.whl", "fleet_helper-1.5-py3-none-any.whl", "requirements.txt"}
    # The exact command from the bundle's README, run on the air-gapped side.
    command = "pip install --require-hashes --only-binary=:all: --no-index --find-links python "
    command += "--requirement python/requirements.txt"
    assert command in (site.bundle / "README.md").read_text()
    target = tmp_path / "other-side"
    subprocess.run(
        [sys.executable, "-m", *command.split(), "--quiet", "--target", str(target)], cwd=str(site.bundle), check=True
    )
    assert {path.name for path in target.glob("*.py")} == {"fleet_tool.py", "fleet_helper.py"}
    # Modify a wheel and its line in SHA256SUMS, like an attacker who changes the bundle in transit.
    helper = site.bundle / "python" / "fleet_helper-1.5-py3-none-any.whl"
    kept = helper.read_bytes()
    wheel(helper.parent, "fleet_helper", "1.5", code="import os")
    done = subprocess.run(
        [sys.executable, "-m", *command.split(), "--quiet", "--target", str(tmp_path / "altered")],
        cwd=str(site.bundle),
        capture_output=True,
        encoding="utf-8",
        check=False,
    )
    assert done.returncode != 0 and "DO NOT MATCH THE HASHES" in done.stderr
    assert not (tmp_path / "altered").exists()
    helper.write_bytes(kept)
    # The request has not changed, so the playbook must work even without the index.
    for path in index.iterdir():
        path.unlink()
    assert "changed=0" in site.make()
    (tmp_path / "requirements.txt").write_text("fleet-tool==3.0\n")
    assert "pip cannot fetch" in site.make(expect=1)
    assert {path.name for path in (site.bundle / "python").iterdir()} == names


def test_packages_with_hashes_are_verified(site, index, tmp_path):
    wheels = {path.name.split("-")[0]: hashlib.sha256(path.read_bytes()).hexdigest() for path in index.iterdir()}
    lines = ["%s==%s --hash=sha256:%s\n" % (name, version, wheels[name]) for name, version in
             (("fleet_tool", "2.0"), ("fleet_helper", "1.5"))]  # fmt: skip
    (tmp_path / "requirements.txt").write_text("".join(lines))
    site.variables["gpu_bundle_parts"] = ["controller"]
    site.variables["gpu_bundle_requirements"] = str(tmp_path / "requirements.txt")
    (helper,) = index.glob("fleet_helper-*")
    good = helper.read_bytes()
    wheel(index, "fleet_helper", "1.5", code="import os")
    said = site.make(expect=1)
    assert "pip cannot fetch" in said and not (site.bundle / "python").exists()
    helper.write_bytes(good)
    said = site.make()
    assert "without hashes" not in said
    assert "changed=0" in site.make()


@pytest.mark.thorough
def test_hosts_get_pynvml_as_a_wheel_instead_of_pip(site, index):
    site.variables["gpu_bundle_parts"] = ["nvml"]
    site.variables.update(gpu_layout_nvml_source="index", gpu_layout_nvml_version="1.2.3")
    said = " ".join(site.make("--check", expect=1).split())
    assert "gpu_layout_nvml_version" in said and "gpu_layout_nvml_hashes" in said
    (path,) = index.glob("nvidia_ml_py-*")
    site.variables["gpu_layout_nvml_hashes"] = ["sha256:" + hashlib.sha256(path.read_bytes()).hexdigest()]
    assert "pip would fetch nvidia-ml-py==1.2.3" in site.make("--check")
    good = path.read_bytes()
    wheel(index, "nvidia_ml_py", "1.2.3", code="import os")
    assert "pip cannot fetch nvidia-ml-py==1.2.3" in site.make(expect=1)
    path.write_bytes(good)
    site.make()
    values = yaml.safe_load((site.bundle / "gpu_bundle.yml").read_text())
    assert values["gpu_layout_nvml_source"] == "wheel"
    assert values["gpu_layout_nvml_wheel"] == "{{ gpu_bundle_path }}/python/nvidia_ml_py-1.2.3-py3-none-any.whl"
    # The hashes verify the bundle, so the air-gapped inventory must set the hashes. The bundle itself must not.
    assert "gpu_layout_nvml_hashes" not in values
    assert (site.bundle / "python" / "nvidia_ml_py-1.2.3-py3-none-any.whl").is_file()
    assert "changed=0" in site.make()


def test_collection_of_a_bundle_installs_and_makes_bundles(site, tmp_path):
    site.variables["gpu_bundle_parts"] = ["collection"]
    site.make()
    (archive,) = (site.bundle / "collection").iterdir()
    install(archive, tmp_path / "c")
    installed = tmp_path / "c" / "ansible_collections" / "openfleet" / "gpu"
    assert (installed / "playbooks" / "bundle.yml").is_file()
    content = archive.read_bytes()
    assert "changed=0" in site.make()
    assert archive.read_bytes() == content
    # An installed collection can also make bundles, although it has no sources to build an archive from.
    site.bundle = tmp_path / "second"
    site.variables["gpu_bundle_parts"] = ["driver", "collection"]
    site.make(playbook=installed / "playbooks" / "bundle.yml")
    assert site.manifest()["collection"]
    again = tmp_path / "d"
    (second,) = (site.bundle / "collection").iterdir()
    install(second, again)
    name = "ansible_collections/openfleet/gpu/"
    assert (again / name / "MANIFEST.json").read_bytes() == (installed / "MANIFEST.json").read_bytes()
    assert (again / name / "plugins" / "action" / "bundle.py").is_file()
