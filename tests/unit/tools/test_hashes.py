# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Check that packages and images installed by root have exact versions and hashes."""

from __future__ import annotations

import hashlib
import importlib.metadata
import re
import sys
from pathlib import Path

import pytest
import tomllib
import yaml

from ansible_collections.openfleet.gpu.plugins.filter import pinned_image, pynvml_source
from ansible_collections.openfleet.gpu.plugins.plugin_utils import nvml_source, python_pins
from tests.unit.wheel_files import wheel

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT / "tools"))
import renew_hashes

NVML = ROOT / "roles/gpu_layout/files/nvml-requirements.txt"
EMBEDDED = ROOT / "roles/dcgm_exporter/files/embedded-requirements.txt"


def pins(path):
    return {pin.name: pin for pin in python_pins.read(path.read_text())}


@pytest.mark.parametrize("lock", renew_hashes.LOCKS, ids=lambda lock: lock.path)
def test_every_requirement_has_an_exact_version_and_a_hash(lock):
    text = (ROOT / lock.path).read_text()
    found = python_pins.read(text)
    assert found and all(pin.sha256 for pin in found)
    # The file must have nothing else: no options, no version ranges and no addresses.
    assert "".join(map(str, found)) == "".join(line for line in text.splitlines(True) if not line.startswith("#"))
    assert [pin.name for pin in found] == sorted(pin.name for pin in found)


@pytest.mark.parametrize("lock", [lock for lock in renew_hashes.LOCKS if lock.group], ids=lambda lock: lock.path)
def test_hashes_match_the_requested_versions(lock):
    """Compare the hashes with the requested versions.

    `make hashes` must be run after each change of a version.
    """
    asked = dict(lock.pins())
    found = pins(ROOT / lock.path)
    assert (
        asked
        and {renew_hashes.normal(name): version for name, version in asked.items()}.items()
        <= {name.lower(): pin.version for name, pin in found.items()}.items()
    )


def test_one_version_of_pynvml_everywhere():
    pin = pins(NVML)["nvidia-ml-py"]
    assert pins(EMBEDDED)["nvidia-ml-py"] == pin == pins(ROOT / "requirements-locked.txt")["nvidia-ml-py"]
    defaults = yaml.safe_load((ROOT / "roles/gpu_layout/defaults/main.yml").read_text())
    assert defaults["gpu_layout_nvml_version"] == pin.version and defaults["gpu_layout_nvml_hashes"] == []
    # The same version is installed in this environment, so the file must have the same hash.
    assert importlib.metadata.version("nvidia-ml-py") == pin.version
    import pynvml

    assert hashlib.sha256(Path(pynvml.__file__).read_bytes()).hexdigest() == nvml_source.shipped().file


def test_one_version_of_ansible_core():
    """Compare the environment of `make check` with the locked one."""
    pinned = pins(ROOT / "requirements-locked.txt")["ansible-core"].version
    groups = tomllib.loads((ROOT / "pyproject.toml").read_text())["dependency-groups"]
    assert "ansible-core==%s" % pinned in groups["check"]


@pytest.mark.parametrize(
    ("file", "minor"),
    [
        ("nvitop-1.7.2-py3-none-any.whl", 8),
        ("psutil-7.2.2-cp36-abi3-manylinux2010_x86_64.manylinux_2_12_x86_64.whl", 8),
        ("bcrypt-5.0.0-cp39-abi3-manylinux_2_34_aarch64.whl", 9),
        ("PyYAML-6.0.3-cp38-cp38-manylinux2014_x86_64.whl", 8),
        ("bcrypt-5.0.0-cp313-cp313t-manylinux_2_28_x86_64.whl", None),
        ("bcrypt-5.0.0-cp39-abi3-musllinux_1_2_x86_64.whl", None),
        ("bcrypt-5.0.0-cp39-abi3-macosx_10_12_universal2.whl", None),
        ("bcrypt-5.0.0-pp311-pypy311_pp73-manylinux_2_28_x86_64.whl", None),
        ("cffi-2.1.1-cp315-cp315-manylinux2014_x86_64.whl", None),
        ("x-1-cp39-abi3-manylinux_2_31_armv7l.whl", None),
    ],
)
def test_wheels_that_a_host_may_choose(file, minor):
    assert renew_hashes.usable(renew_hashes.WHEEL.fullmatch(file), range(8, 15)) == minor


def test_pin_is_read_as_written():
    pin = python_pins.Pin("fleet-tool", "2.0", ("0" * 64, "1" * 64))
    assert python_pins.read("# x\n%sother==1\n" % pin) == [pin, python_pins.Pin("other", "1")]
    assert python_pins.of_files([("fleet_tool-2.0-py3-none-any.whl", "0" * 64), ("requirements.txt", "2" * 64)]) == [
        python_pins.Pin("fleet-tool", "2.0", ("0" * 64,))
    ]


# -- pynvml ------------------------------------------------------------------------------------------------------------


def source(**more):
    variables = {"source": "index", "version": nvml_source.shipped().wheels.version, "wheel": "", "hashes": [], **more}
    return pynvml_source.pynvml_source({"gpu_layout_nvml_" + name: value for name, value in variables.items()})


OTHER = "sha256:" + "0" * 64


def test_the_shipped_version_has_the_shipped_hashes():
    assert source() == {"problem": "", "path": "", "sha256": "", "requirements": str(nvml_source.shipped().wheels)}
    assert source(source="none")["problem"] == source(source="distribution", version="1")["problem"] == ""


def test_another_version_needs_its_hashes():
    said = source(version="12.1")["problem"]
    assert said.startswith("gpu_layout_nvml_version: it is 12.1, but the collection has only hashes of ")
    assert "Set gpu_layout_nvml_hashes to" in said and "pip hash" in said
    found = source(version="12.1", hashes=[OTHER])
    assert found["problem"] == "" and found["requirements"] == "nvidia-ml-py==12.1 \\\n    --hash=%s\n" % OTHER


@pytest.mark.parametrize("text", ["0" * 64, "sha256:abc", "md5:" + "0" * 32, OTHER + "\n    --hash=sha256:x", ""])
def test_invalid_hash_is_refused(text):
    said = source(hashes=[text])["problem"]
    assert "gpu_layout_nvml_hashes: %r is not a hash" % text in said and "pip hash FILE" in said


def test_wheel_is_verified_by_hash_not_name(tmp_path):
    digest = wheel(tmp_path, "nvidia-ml-py", nvml_source.shipped().wheels.version, module="pynvml")
    (path,) = tmp_path.iterdir()
    said = source(source="wheel", wheel=str(path))["problem"]
    assert said.startswith("gpu_layout_nvml_wheel: the SHA-256 of %s is %s" % (path, digest))
    assert "add sha256:%s to gpu_layout_nvml_hashes" % digest in said
    found = source(source="wheel", wheel=str(path), hashes=[OTHER, "sha256:" + digest])
    assert found == {"problem": "", "path": str(path), "sha256": "", "requirements": ""}
    assert "the controller has no file" in source(source="wheel", wheel=str(tmp_path / "none"))["problem"]
    assert "the controller has no file" in source(source="wheel")["problem"]


def test_controllers_file_is_verified_by_hash(tmp_path, monkeypatch):
    import pynvml

    found = source(source="controller")
    assert found["path"] == pynvml.__file__ and found["sha256"] == nvml_source.shipped().file
    (tmp_path / "pynvml.py").write_text("import os\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.delitem(sys.modules, "pynvml")
    digest = hashlib.sha256(b"import os\n").hexdigest()
    said = source(source="controller")["problem"]
    assert "the SHA-256 of %s is %s" % (tmp_path / "pynvml.py", digest) in said
    assert "pip install --require-hashes --only-binary=:all: --requirement %s" % NVML in said
    assert source(source="controller", hashes=["sha256:" + digest])["path"] == str(tmp_path / "pynvml.py")
    # This is another package with the same name.
    (tmp_path / "pynvml.py").unlink()
    (tmp_path / "pynvml").mkdir()
    (tmp_path / "pynvml/__init__.py").touch()
    assert "has no pynvml.py of the package nvidia-ml-py" in source(source="controller")["problem"]


@pytest.mark.parametrize("entry", ["main", "plan"])
def test_role_verifies_pynvml_first(entry):
    """The check comes before all other tasks.

    site.yml runs plan.yml before any change.
    """
    tasks = yaml.safe_load((ROOT / "roles/gpu_layout/tasks" / f"{entry}.yml").read_text())
    # Without this check, a host's facts could override the file and the hash.
    assert tasks[0]["ansible.builtin.import_tasks"].endswith("/playbooks/tasks/facts.yml")
    assert tasks[1]["ansible.builtin.import_tasks"] == "nvml_check.yml"


# -- Images ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("image", "warned"),
    [
        ("registry.example.org/dcgm-exporter:4@sha256:" + "a" * 64, False),
        ("registry.example.org:5000/dcgm-exporter@sha256:" + "a" * 64, False),
        ("registry.example.org/dcgm-exporter:4", True),
        ("registry.example.org:5000/dcgm-exporter", True),
    ],
)
def test_image_without_digest_is_a_warning(image, warned, monkeypatch):
    said = []
    monkeypatch.setattr(pinned_image.display, "warning", said.append)
    assert pinned_image.pinned_image(image, "dcgm_exporter_image") == image
    assert bool(said) is warned
    if warned:
        assert said[0].startswith("dcgm_exporter_image: %s has no digest" % image)
        section = re.search(r"docs/(\S+)#(\S+)\.$", said[0])
        headings = re.findall(r"^#+ (.*)$", (ROOT / "docs" / section[1]).read_text(), re.MULTILINE)
        assert section[2] in [heading.lower().replace(" ", "-") for heading in headings]
