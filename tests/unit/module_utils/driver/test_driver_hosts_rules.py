# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test rules for existing hosts: foreign drivers, new GPUs, and the next kernel."""

from __future__ import annotations

from dataclasses import replace

import pytest

from ansible_collections.openfleet.gpu.plugins.action.driver import minimum_versions
from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
from ansible_collections.openfleet.gpu.plugins.module_utils.driver import files, plan, rules
from ansible_collections.openfleet.gpu.plugins.module_utils.driver.model import (
    Package,
    Request,
    SecureBoot,
    Transaction,
)
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import PlanError
from tests.unit.module_utils.driver.driver_hosts import (
    AMPERE,
    BLACKWELL,
    DISTRIBUTIONS,
    HEADLESS,
    HOPPER,
    VOLTA,
    finished,
    gpus,
    host,
    packages,
)

pytestmark = pytest.mark.core

PATTERNS = {name: entry["patterns"] for name, entry in DISTRIBUTIONS.items()}
MINIMUMS = minimum_versions()

# -- GPUs that need a newer driver -------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", load_models().values(), ids=lambda model: model.key)
def test_each_model_has_a_minimum_driver_with_a_source_or_a_note(model):
    rules.check_version(model.minimum_driver)
    sources = [text for text in model.sources if "minimum driver version" in text]
    assert bool(sources) or model.unconfirmed.get("minimum_driver"), model.key


@pytest.mark.parametrize(
    ("device_id", "version", "minimum"),
    [
        (BLACKWELL, "550", "570.133.20"),
        (BLACKWELL, "570.86.15", "570.133.20"),
        ("2bb5", "570", "575.51.03"),
        (HOPPER, "470", "525.85.12"),
        ("2335", "535.288.01", "550.90.07"),
        ("26b9", "525", "535"),
        ("3182", "570", "580.82.07"),
        # The catalogue does not have this GPU. The range of its device ID gives the driver.
        ("3183", "550", "570"),
        ("2684", "515", "520"),
    ],
)
def test_driver_older_than_the_gpu_is_refused_with_gpu_branch_and_minimum(device_id, version, minimum):
    with pytest.raises(PlanError) as caught:
        rules.check_gpus(gpus(AMPERE, device_id), version, MINIMUMS)
    message = str(caught.value)
    assert caught.value.where == "nvidia_driver_version"
    assert "0000:11:00.0" in message and "10de:" + device_id in message
    assert "0000:10:00.0" not in message, "the A100 runs with it"
    assert message.count(version) and "needs %s or later" % minimum in message
    assert MINIMUMS.get(device_id, {"name": "GPU"})["name"] in message
    assert minimum.split(".")[0] in caught.value.cure and "Nothing was changed" in caught.value.cure


@pytest.mark.parametrize(
    ("device_id", "version"),
    [(BLACKWELL, "570"), (BLACKWELL, "570.133.20"), (BLACKWELL, "570.133"), ("2bb1", "570"), ("2bb5", "580"), (HOPPER, "525"),
     (HOPPER, "580.95.05"), ("2204", "470"), (VOLTA, "470")],
)  # fmt: skip
def test_supported_driver_is_accepted(device_id, version):
    assert rules.check_gpus(gpus(device_id), version, MINIMUMS) == ()


def test_undocumented_minimum_is_a_note():
    (note,) = rules.check_gpus(gpus("2348"), "550", MINIMUMS)
    assert "0000:10:00.0" in note and "565.57.01" in note and "not confirmed" in note


def test_gpus_that_need_open_modules_are_named():
    with pytest.raises(PlanError, match=r"0000:11:00\.0 \(10de:2901\)"):
        rules.flavor(gpus(HOPPER, BLACKWELL), "proprietary", 580)


# -- Drivers from elsewhere --------------------------------------------------------------------------------------------

VGPU = "nvidia-vgpu-ubuntu-580"
FOREIGN = [
    (VGPU, "vGPU"),
    ("nvidia-linux-grid-580", "vGPU guest"),
    ("NVIDIA-vGPU-rhel", "vGPU"),
    ("akmod-nvidia", "RPM Fusion"),
    ("xorg-x11-drv-nvidia-cuda", "RPM Fusion"),
    ("nvidia-x11-drv", "ELRepo"),
]


def ours(distribution="debian-12"):
    return packages("580.95.05-1", *HEADLESS)


@pytest.mark.parametrize(("name", "what"), FOREIGN)
@pytest.mark.parametrize("distribution", sorted(DISTRIBUTIONS))
def test_driver_of_other_packages_is_removed_only_if_allowed(distribution, name, what):
    seen = host(distribution, packages=(*ours(), Package(name, "580.95.05-1")))
    patterns = PATTERNS[distribution]
    assert not rules.of_the_driver(Package(name, "580.95.05-1"), patterns)
    for source in ("repository", "distribution", "runfile"):
        with pytest.raises(PlanError) as caught:
            rules.refuse_mixing(seen, Request("580", source=source), patterns)
        message = str(caught.value)
        assert name in message and what in message and source in message
        assert "nvidia_driver_allow_removal" in caught.value.cure
    with pytest.raises(PlanError, match=name):
        plan.absent(seen, Request("", reboot="now"), "apt", files.KEYRINGS["apt"], Transaction(""), patterns)
    allowed = Request("580", allow_removal=(name,))
    assert rules.refuse_mixing(seen, allowed, patterns) == (name,)
    assert rules.refuse_foreign(seen, replace(allowed, version="")) == (name,)


@pytest.mark.parametrize(
    ("left", "text", "cure"),
    [
        (
            {"runfile": "/usr/bin/nvidia-uninstall"},
            "/usr/bin/nvidia-uninstall",
            "add runfile to nvidia_driver_allow_removal",
        ),
        ({"dkms": ("575.57.08",)}, "575.57.08", "dkms remove -m nvidia -v 575.57.08 --all"),
        ({"installer_log": "/var/lib/nvidia/log", "library": "575.57.08"}, "/var/lib/nvidia/log", "--uninstall"),
        ({"driver_container": "/run/nvidia/driver/usr"}, "/run/nvidia/driver/usr", "driver.enabled=false"),
    ],
)
def test_other_installation_method_is_named_and_refused(left, text, cure):
    with pytest.raises(PlanError) as caught:
        rules.refuse_mixing(host(packages=ours(), **left), Request("580"), PATTERNS["debian-12"])
    assert text in str(caught.value) and cure in caught.value.cure


def test_all_other_installation_methods_are_named_at_once():
    seen = host(
        packages=(Package(VGPU, "580.95.05-1"),), runfile="/usr/bin/nvidia-uninstall", driver_container="/run/x"
    )
    with pytest.raises(PlanError) as caught:
        rules.refuse_mixing(seen, Request("580", allow_removal=("runfile",)), PATTERNS["debian-12"])
    assert VGPU in str(caught.value) and "/run/x" in str(caught.value)
    assert "nvidia-uninstall" not in str(caught.value), "its removal is allowed"


def test_leftovers_of_packages_are_no_other_method():
    seen = finished(dkms=("580.95.05",), installer_log="/var/lib/nvidia/log")
    assert rules.refuse_mixing(seen, Request("580"), PATTERNS["debian-12"]) == ()
    torn = host(dkms=("590.44.01",), interrupted="from 580.95.05 to 590.44.01")
    assert rules.refuse_mixing(torn, Request("580"), PATTERNS["debian-12"]) == ()
    toolkit = host(packages=(Package("nvidia-container-toolkit", "1.19.1-1"),))
    assert rules.refuse_mixing(toolkit, Request("580", source="runfile"), PATTERNS["debian-12"]) == ()


def test_runfile_is_not_installed_over_packages():
    with pytest.raises(PlanError, match="nvidia-driver-cuda") as caught:
        rules.refuse_mixing(host(packages=ours()), Request("580.95.05", source="runfile"), PATTERNS["debian-12"])
    assert "nvidia_driver_allow_removal" in caught.value.cure
    allowed = Request("580.95.05", source="runfile", allow_removal=HEADLESS)
    assert rules.refuse_mixing(host(packages=ours()), allowed, PATTERNS["debian-12"]) == ()


def make(seen, request, transaction=None, version="580.95.05"):
    entry = DISTRIBUTIONS["debian-12"]
    names = rules.wanted(seen, request, entry, 580)
    goal = plan.Goal(names, version, transaction, {})
    return plan.present(seen, request, goal, plan.Repository(seen.key_fingerprints, entry["patterns"]))


def test_runfile_driver_is_removed_before_packages_are_installed():
    seen = host(runfile="/usr/bin/nvidia-uninstall", library="575.57.08", on_disk="575.57.08")
    transaction = Transaction("580.95.05", tuple((name, "", "580.95.05-1") for name in HEADLESS))
    made = make(seen, Request("580", allow_removal=("runfile",), reboot="now"), transaction)
    kinds = [step.kind for step in made.steps]
    assert kinds.index("uninstall") < kinds.index("packages")


# -- The kernel that comes next ----------------------------------------------------------------------------------------


def wanted(distribution, kernel, *images, branch=580, source="repository", **more):
    seen = host(distribution, kernel=kernel, packages=tuple(Package(name, "1") for name in images), **more)
    return rules.wanted(seen, Request(str(branch), source=source), DISTRIBUTIONS[distribution], branch)


@pytest.mark.parametrize(
    ("distribution", "kernel", "images", "names"),
    [
        ("debian-12", "6.1.0-40-amd64", (), ["linux-headers-amd64"]),
        ("debian-12", "6.1.0-40-cloud-amd64", (), ["linux-headers-cloud-amd64"]),
        ("debian-12", "6.1.0-40-rt-amd64", (), ["linux-headers-rt-amd64"]),
        ("debian-12", "6.12.9+bpo-amd64", (), ["linux-headers-amd64"]),
        ("debian-13", "6.12.48+deb13-arm64", (), ["linux-headers-arm64"]),
        ("debian-13", "6.12.48+deb13-amd64", ("linux-image-6.12.48+deb13-amd64", "linux-image-amd64", "linux-image-amd64-dbg"),
         ["linux-headers-amd64"]),
        ("ubuntu-22.04", "5.15.0-160-generic", (), ["linux-headers-generic"]),
        ("ubuntu-22.04", "6.8.0-90-generic", ("linux-image-6.8.0-90-generic", "linux-image-generic-hwe-22.04"),
         ["linux-headers-generic-hwe-22.04"]),
        ("ubuntu-24.04", "6.8.0-90-lowlatency", ("linux-image-lowlatency", "linux-image-unsigned-6.8.0-90-lowlatency"),
         ["linux-headers-lowlatency"]),
        ("ubuntu-24.04", "6.8.0-1044-aws", ("linux-image-aws",), ["linux-headers-aws"]),
        ("ubuntu-24.04", "6.8.0-1044-azure", ("linux-image-azure-lts-24.04",), ["linux-headers-azure-lts-24.04"]),
        ("ubuntu-24.04", "6.8.0-1044-gcp", (), ["linux-headers-gcp"]),
        ("ubuntu-24.04", "6.8.0-1044-nvidia-64k", (), ["linux-headers-nvidia-64k"]),
        ("ubuntu-24.04", "6.8.0-90-generic", ("linux-image-virtual",), ["linux-headers-virtual"]),
        ("debian-12", "6.6.1", (), []),
    ],
)  # fmt: skip
def test_headers_follow_the_kernels_image(distribution, kernel, images, names):
    assert [name for name, _asked in wanted(distribution, kernel, *images).next_kernel] == names


def test_signed_modules_follow_the_kernels_image():
    found = wanted("ubuntu-24.04", "6.14.0-33-generic", "linux-image-generic-hwe-24.04", source="distribution",
                   secure_boot=SecureBoot(True))  # fmt: skip
    assert "linux-modules-nvidia-580-server-open-6.14.0-33-generic" in found.free
    assert [name for name, _asked in found.next_kernel] == ["linux-modules-nvidia-580-server-open-generic-hwe-24.04"]


@pytest.mark.parametrize(
    ("distribution", "kernel", "build", "following"),
    [
        ("el-9", "5.14.0-570.12.1.el9_6.x86_64", "kernel-devel-5.14.0-570.12.1.el9_6.x86_64",
         ("kernel-devel-matched", "kernel-devel-matched-5.14.0-570.12.1.el9_6.x86_64")),
        ("el-9", "5.14.0-570.12.1.el9_6.aarch64+64k", "kernel-64k-devel-5.14.0-570.12.1.el9_6.aarch64",
         ("kernel-64k-devel-matched", "kernel-64k-devel-matched-5.14.0-570.12.1.el9_6.aarch64")),
        ("el-10", "6.12.0-55.9.1.el10_0.x86_64+rt", "kernel-rt-devel-6.12.0-55.9.1.el10_0.x86_64",
         ("kernel-rt-devel-matched", "kernel-rt-devel-matched-6.12.0-55.9.1.el10_0.x86_64")),
        ("el-10", "6.12.0-55.9.1.el10_0.aarch64+rt-64k", "kernel-rt-64k-devel-6.12.0-55.9.1.el10_0.aarch64",
         ("kernel-rt-64k-devel-matched", "kernel-rt-64k-devel-matched-6.12.0-55.9.1.el10_0.aarch64")),
        ("el-9", "5.14.0-570.12.1.el9_6.x86_64+debug", "kernel-debug-devel-5.14.0-570.12.1.el9_6.x86_64",
         ("kernel-debug-devel-matched", "kernel-debug-devel-matched-5.14.0-570.12.1.el9_6.x86_64")),
        ("el-8", "4.18.0-553.rt7.342.el8_10.x86_64", "kernel-rt-devel-4.18.0-553.rt7.342.el8_10.x86_64",
         ("kernel-rt-devel", "kernel-rt-devel-4.18.0-553.rt7.342.el8_10.x86_64")),
        ("el-9", "5.15.0-312.187.5.el9uek.x86_64", "kernel-uek-devel-5.15.0-312.187.5.el9uek.x86_64",
         ("kernel-uek-devel-matched", "kernel-uek-devel-matched-5.15.0-312.187.5.el9uek.x86_64")),
    ],
)  # fmt: skip
def test_red_hats_variants_have_their_own_packages(distribution, kernel, build, following):
    found = wanted(distribution, kernel, headers=False)
    assert build in found.free
    assert found.next_kernel == (following,)


def test_host_without_the_kernel_meta_package_gets_it():
    """Without the meta package, headers of the next kernel would be missing."""
    entry = DISTRIBUTIONS["debian-12"]
    names = [*HEADLESS, "linux-image-amd64"]
    for more, version in (([], ""), (["linux-headers-amd64"], "580.95.05")):
        seen = finished(packages=packages("580.95.05-1", *names, *more))
        found = rules.wanted(seen, Request("580"), entry, 580)
        assert plan.settled(seen, Request("580"), found) == version


def test_libraries_alone_need_no_kernel_packages():
    seen = host(packages=(Package("linux-image-amd64", "1"),))
    assert rules.wanted(seen, Request("580", kernel_modules="none"), DISTRIBUTIONS["debian-12"], 580).next_kernel == ()


def test_packages_without_source_are_a_note():
    made = make(host(), Request("580"), Transaction("580.95.05", missing=("linux-headers-custom",)))
    assert any("linux-headers-custom" in note and "next kernel" in note for note in made.notes)
