# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test the hardware check: model files, nvidia-smi, kernel files and masking.

The tests also cover the page of the report.
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.errors import FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.hardware import host_files, nvidia_smi
from ansible_collections.openfleet.gpu.plugins.plugin_utils.hardware import (
    acceptance,
    checks,
    host_checks,
    host_reading,
    model_file,
    page,
    report,
    simulated,
)
from tests.thorough import THOROUGH

UUID = "GPU-0a1b2c3d-0000-4000-8000-00000000000a"
FILES = model_file.model_files()
#: The part of `nvidia-smi -q -x` that the parser reads (nvsmi_device_v12.dtd).
XML = """<?xml version="1.0" ?>
<nvidia_smi_log>
  <driver_version>580.105.08</driver_version>
  <cuda_version>13.0</cuda_version>
  <gpu id="00000000:1A:00.0">
    <product_name>NVIDIA H100 80GB HBM3</product_name>
    <mig_mode><current_mig>Enabled</current_mig><pending_mig>Enabled</pending_mig></mig_mode>
    <mig_devices>
      <mig_device><index>0</index><gpu_instance_id>1</gpu_instance_id><compute_instance_id>0</compute_instance_id></mig_device>
    </mig_devices>
    <serial>1650000000001</serial>
    <uuid>%s</uuid>
    <minor_number>0</minor_number>
    <gpu_part_number>2330-885-A1</gpu_part_number>
    <persistence_mode>Disabled</persistence_mode>
    <compute_mode>Default</compute_mode>
    <pci><pci_bus_id>00000000:1A:00.0</pci_bus_id></pci>
    <fb_memory_usage><total>81559 MiB</total></fb_memory_usage>
  </gpu>
</nvidia_smi_log>
""" % UUID  # fmt: skip


def fact(**changes):
    gpu = {
        "index": 0,
        "uuid": UUID,
        "name": "NVIDIA H100 80GB HBM3",
        "pci_address": "0000:1a:00.0",
        "memory_total_bytes": 81559 << 20,
        "serial": "1650000000001",
        "persistence_mode": False,
        "compute_mode": None,
        "numa_node": 0,
        "mig": {"capable": True, "enabled": True, "pending": True, "instances": [{"id": 1, "compute_instances": [0]}]},
    }
    return dict(gpu, **changes)


def facts(**changes):
    versions = {"driver_version": "580.105.08", "cuda_version": "13.0"}
    return {**versions, "gpus": [fact(**changes)], "lost": [], "problems": []}


def differing(checks):
    return {check.what: (check.expected, check.found) for check in checks if check.outcome == "differs"}


def value_paths(data, prefix=""):
    for name, value in data.items():
        if isinstance(value, dict):
            yield from value_paths(value, f"{prefix}{name}.")
        else:
            yield prefix + name


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.path.stem)
def test_every_field_of_a_model_file_has_its_line(file):
    lines = file.text.splitlines()
    plain = {key: value for key, value in file.data.items() if not isinstance(value, list)}
    for left in ("unconfirmed", "compute_instance_profiles"):
        plain.pop(left)
    for path in value_paths(plain):
        line = lines[file.line(path) - 1]
        assert '"%s": %s' % (path.rpartition(".")[2], json.dumps(file.value(path, 0))) in line, path
    for profile in file.data["profiles"]:
        for field in set(profile) - {"unconfirmed"}:
            path = "profiles.%s.%s" % (profile["name"], field)
            assert '"%s": %s' % (field, json.dumps(profile[field])) in lines[file.line(path) - 1], path
    assert '"boards"' in lines[file.line("pci_device_id") - 1]


@pytest.mark.parametrize("file", [file for file in FILES if file.model.variants], ids=lambda file: file.path.stem)
def test_every_value_of_a_variant_has_its_line(file):
    lines = file.text.splitlines()
    for variant in file.model.variants:
        for path, value in variant.differences.items():
            where = file.where_in_variant(variant.pci_subsystem_id, path)
            assert '"%s": %s' % (path, json.dumps(value)) in lines[int(where.rpartition(":")[2]) - 1]


def test_equal_nvidia_smi_output_has_no_differences():
    checks = list(host_checks.smi_checks(facts(), nvidia_smi.parse(XML)))
    assert differing(checks) == {}
    assert [check.what for check in checks if check.outcome == "not run"] == ["compute mode"]
    assert len([check for check in checks if check.outcome == "passed"]) == 11


@pytest.mark.parametrize(
    ("old", "new", "what"),
    [
        ("<current_mig>Enabled", "<current_mig>Disabled", "MIG mode"),
        ("<total>81559", "<total>81558", "memory in MiB"),
        ("<gpu_instance_id>1", "<gpu_instance_id>2", "MIG devices (GPU instance, compute instance)"),
        ("00000000:1A:00.0</pci_bus_id>", "00000000:1B:00.0</pci_bus_id>", "PCI address"),
        ("<cuda_version>13.0", "<cuda_version>12.8", "CUDA version"),
        (UUID, UUID[:-1] + "b", "UUIDs of all GPUs"),
    ],
)
def test_different_nvidia_smi_output_is_a_difference(old, new, what):
    assert old in XML
    assert what in differing(host_checks.smi_checks(facts(), nvidia_smi.parse(XML.replace(old, new))))


def test_failing_nvidia_smi_is_a_reason():
    def missing(_command):
        raise FileNotFoundError

    (check,) = host_checks.smi_checks(facts(), nvidia_smi.read_nvidia_smi(missing))
    assert (check.outcome, check.reason) == ("not run", "nvidia-smi is not installed")
    assert nvidia_smi.parse("NVIDIA-SMI has failed")["problem"].startswith("nvidia-smi printed no XML")


@pytest.fixture
def kernel(tmp_path):
    """Make the kernel files of a host with one H100 in MIG mode.

    The device nodes of the GPU are copies of /dev/zero (1:5).
    """
    for path, text in {
        "proc/driver/nvidia/version": "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.105.08  Release Build\n",
        "proc/driver/nvidia/gpus/0000:1a:00.0/information": "Model: \t\t NVIDIA H100 80GB HBM3\nIRQ:   \t\t 105\n"
        "GPU UUID: \t %s\nVideo BIOS: \t 96.00.99.00.01\nDevice Minor: \t 5\n" % UUID,
        "proc/driver/nvidia-caps/mig-minors": "config 1\nmonitor 2\ngpu5/gi1/access 687\ngpu5/gi1/ci0/access 688\n",
        "proc/modules": "nvidia_uvm 1 0 - Live 0x0 (OE)\nnvidia 2 1 nvidia_uvm, Live 0x0 (OE)\next4 3 1 - Live 0x0\n",
        "proc/devices": "Character devices:\n  1 nvidia\n  5 /dev/tty\n236 nvidia-caps\n\nBlock devices:\n  1 nvidia-none\n",
        "sys/bus/pci/devices/0000:1a:00.0/vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:1a:00.0/device": "0x2330\n",
        "sys/bus/pci/devices/0000:1a:00.0/subsystem_vendor": "0x10de\n",
        "sys/bus/pci/devices/0000:1a:00.0/subsystem_device": "0x16c1\n",
        "sys/bus/pci/devices/0000:1a:00.0/current_link_width": "16\n",
        "sys/bus/pci/devices/0000:1a:00.0/numa_node": "0\n",
    }.items():
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(text)
    (tmp_path / "sys/bus/pci/devices/0000:1a:00.0/driver").symlink_to("../../../../bus/pci/drivers/nvidia")
    (tmp_path / "dev").mkdir()
    (tmp_path / "dev/nvidia5").symlink_to("/dev/zero")
    (tmp_path / "dev/nvidia-notes").write_text("no device")
    return tmp_path


def nvml_of_one(simulated=False):
    calls = {
        "nvmlDeviceGetMinorNumber": 5,
        "nvmlDeviceGetVbiosVersion": "96.00.99.00.01",
        "nvmlDeviceGetPciInfo": {"pciDeviceId": 0x233010DE, "pciSubSystemId": 0x16C110DE},
        "nvmlDeviceGetCurrPcieLinkWidth": 16,
    }
    readings = [{"call": call, "of": "", "value": value} for call, value in calls.items()]
    return {"simulated": simulated, "facts": facts(), "gpus": [{"index": 0, "problem": None, "calls": readings}]}


def of_gpu(nvml, call, of=""):
    """Return the reading of a call.

    If there is no such reading, first add one without a value.
    """
    calls = nvml["gpus"][0]["calls"]
    calls += [] if any(is_reading(each, call, of) for each in calls) else [{"call": call, "of": of}]
    return next(each for each in calls if is_reading(each, call, of))


def is_reading(reading, call, of):
    return (reading["call"], reading["of"]) == (call, of)


def read(root):
    return host_files.read_host(["0000:1a:00.0"], str(root))


def test_matching_kernel_files(kernel):
    checks = list(host_checks.kernel_checks(nvml_of_one(), read(kernel)))
    # This node is missing, because the test cannot create a node with the minor number 255.
    assert differing(checks) == {"/dev/nvidiactl": ("a character device", "missing")}
    assert {check.what: check.reason for check in checks if check.outcome == "not run"} == {
        "nodes of GPU instance 1": "not created yet: nvidia-cap687, nvidia-cap688"
    }
    passed = {check.what for check in checks if check.outcome == "passed"}
    assert {
        "UUID in /proc",
        "/dev/nvidia5",
        "gpu5/gi1/access",
        "gpu5/gi1/ci0/access",
        "vendor and device",
        "NUMA node",
    } <= passed


def test_vbios_is_compared_ignoring_case(kernel):
    """Ignore the case of VBIOS versions.

    NVML of driver 580 prints upper case, and the open kernel module prints lower case.
    """
    file = kernel / "proc/driver/nvidia/gpus/0000:1a:00.0/information"
    for inside, outcome in (("96.00.a5.00.1a", "passed"), ("96.00.a5.00.1b", "differs")):
        file.write_text(file.read_text().replace("96.00.99.00.01", inside).replace("96.00.a5.00.1a", inside))
        nvml = nvml_of_one()
        of_gpu(nvml, "nvmlDeviceGetVbiosVersion")["value"] = "96.00.A5.00.1A"
        checks = host_checks.kernel_checks(nvml, read(kernel))
        (check,) = (check for check in checks if check.what == "VBIOS in /proc")
        assert (check.outcome, check.expected, check.found) == (outcome, "96.00.A5.00.1A", inside)


def test_simulated_gpus_have_only_possible_kernel_files_checked(kernel):
    (kernel / "dev/nvidia5").unlink()
    (kernel / "proc/modules").unlink()
    checks = list(host_checks.kernel_checks(nvml_of_one(simulated=True), read(kernel)))
    assert differing(checks) == {}
    not_run = {check.what for check in checks if check.outcome == "not run"}
    assert not_run == {"module nvidia in /proc/modules", "/dev/nvidiactl", "/dev/nvidia5", "nodes of GPU instance 1"}


@pytest.mark.parametrize(
    ("path", "old", "new", "what"),
    [
        ("proc/driver/nvidia/version", "580.105.08", "570.1.1", "version of the module and of NVML"),
        ("proc/driver/nvidia/gpus/0000:1a:00.0/information", "Minor: \t 5", "Minor: \t 4", "device minor in /proc"),
        ("proc/driver/nvidia-caps/mig-minors", "687", "686", "gpu5/gi1/access"),
        ("proc/modules", "ext4", "nouveau", "module nouveau"),
        ("proc/devices", "  1 nvidia\n", "195 nvidia\n", "/dev/nvidia5"),
        ("sys/bus/pci/devices/0000:1a:00.0/current_link_width", "16", "8", "width of the link"),
        ("sys/bus/pci/devices/0000:1a:00.0/device", "0x2330", "0x2331", "vendor and device"),
    ],
)
def test_different_kernel_files(kernel, path, old, new, what):
    text = (kernel / path).read_text()
    assert old in text
    (kernel / path).write_text(text.replace(old, new))
    assert what in differing(host_checks.kernel_checks(nvml_of_one(), read(kernel)))


def test_missing_kernel_files_are_no_difference(tmp_path):
    for is_simulated, word in ((True, "simulated GPUs"), (False, "/proc/driver/nvidia does not exist")):
        checks = list(host_checks.kernel_checks(nvml_of_one(is_simulated), read(tmp_path)))
        assert {check.outcome for check in checks} == {"not run"}
        assert all(word in check.reason for check in checks)


def test_masking_removes_identities_of_a_card():
    value = {"a": [UUID, "see %s" % UUID, {"serial": "165"}], "MIG-%s" % UUID[4:]: 1, "old": "MIG-%s/1/0" % UUID}
    text = json.dumps(report.masked(value, {UUID: "(UUID of GPU 0)", "165": "(serial number of GPU 0)"}))
    assert UUID[4:] not in text
    assert "165" not in text
    assert "(UUID of a MIG device)" in text


@pytest.mark.parametrize(("serial", "stays"), [("1650000000001", False), ("0", True), ("N/A", True)])
def test_placeholder_serial_number_is_not_masked(serial, stays):
    reading = whole_reading()
    for call in reading["nvml"]["gpus"][0]["calls"]:
        if call["call"] == "nvmlDeviceGetSerial":
            call["value"] = serial
    reading["nvidia_smi"]["gpus"][0]["serial"] = serial
    reading["nvml"]["facts"]["gpus"][0]["serial"] = serial
    made = report.make(reading, FILES)
    assert made["driver_version"] == "580.105.08"
    assert (serial in made["readings"]["nvidia_smi"]["gpus"][0]["serial"]) is stays
    assert ("(serial number of GPU 0)" in report.to_text(made)) is not stays


def test_page_escapes_texts_of_hosts():
    evil = "<script>alert(1)</script>"
    check = {
        "area": evil,
        "gpu": 0,
        "what": evil,
        "outcome": "differs",
        "expected": evil,
        "found": evil,
        "reason": evil,
        "where": evil,
    }
    summary = {"passed": 0, "differs": 1, "not run": 0}
    made = {
        "made": evil, "host": evil, "simulated": False, "as_root": True, "driver_version": evil, "cuda_version": None,
        "kernel": evil, "pynvml": evil, "summary": summary, "checks": [check],
        "gpus": [{"index": 0, "name": evil, "model": evil, "problem": None, "summary": summary}],
    }  # fmt: skip
    text = page.to_text(made)
    assert "<script" not in text
    assert text.count("&lt;script&gt;") >= 10


def test_the_catalogue_is_read_from_any_folder(tmp_path):
    (tmp_path / "t4-16gb.json").write_text(Path(model_file.MODELS, "t4-16gb.json").read_text())
    assert [file.model.key for file in model_file.model_files(tmp_path)] == ["T4-16GB"]


def whole_reading():
    """Return a module's reading of one GPU, with all parts that the check uses."""
    nvml = nvml_of_one()
    readings = nvml["gpus"][0]["calls"]
    for call, of, value in (
        ("nvmlDeviceGetUUID", "", UUID),
        ("nvmlDeviceGetSerial", "", "1650000000001"),
        ("nvmlDeviceGetMigMode", "", [1, 1]),
        ("nvmlDeviceGetEccMode", "", [1, 1]),
        ("nvmlDeviceGetRemappedRows", "", [0, 0, 0, 0]),
        ("nvmlDeviceGetNvLinkState", "link 0", 1),
        ("nvmlDeviceGetNvLinkErrorCounter", "link 0 replay", 0),
        ("nvmlDeviceGetPowerManagementLimitConstraints", "", [200000, 700000]),
        ("nvmlDeviceGetEnforcedPowerLimit", "", 700000),
        ("nvmlDeviceGetPowerManagementDefaultLimit", "", 700000),
        ("nvmlDeviceGetCurrentClocksEventReasons", "", 0),
        ("nvmlDeviceGetTemperature", "gpu", 40),
        ("nvmlDeviceGetTemperatureThreshold", "gpu max", 87),
        ("nvmlDeviceGetGpuInstancePossiblePlacements", "profile 0", [{"start": 0, "size": 1}]),
        (
            "nvmlDeviceGetGpuInstanceProfileInfo",
            "profile 0",
            {
                "name": "MIG 1g.10gb", "id": 19, "sliceCount": 1, "memorySizeMB": 9984, "multiprocessorCount": 16,
                "copyEngineCount": 1, "decoderCount": 1, "encoderCount": 0, "jpegCount": 1, "ofaCount": 0, "instanceCount": 7,
            },
        ),
    ):  # fmt: skip
        readings.append({"call": call, "of": of, "value": value})
    nvml.update(pynvml="13", calls=[{"call": "nvmlDeviceGetCount", "of": "", "value": 1}])
    nvml["gpus"][0]["code_name"] = None
    files = {"kernel": "6.1", "machine": "x86_64", "driver_version": None, "gpus": {}, "pci": {}}
    tests = [{"category": "a", "name": "b", "results": [{"of": "GPU 0", "status": "Pass", "warnings": []}]}]
    dcgm = {"level": 1, "missing": None, "problem": None, "tests": tests}
    return {
        "schema": 1,
        "made": 1.0,
        "root": True,
        "nvml": nvml,
        "nvidia_smi": nvidia_smi.parse(XML),
        "files": files,
        "dcgm": dcgm,
    }


def places(value, path=()):
    """Return the paths of all values in a reading."""
    yield path
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from places(each, (*path, name))


def judged(reading):
    """Return {(area, subject): check} of a reading."""
    return {(check.area, check.what): check for check in checks.judge(reading, FILES)}


def test_unfilled_field_is_no_value():
    """Ignore fields that the driver did not fill.

    On an H200, driver 580 returns success for these fields and leaves zeros in them.
    """
    reading = whole_reading()
    call = "nvmlDeviceGetFieldValues"
    for of in ("power min limit", "module power default limit"):
        of_gpu(reading["nvml"], call, of)["value"] = 0.0
    of_gpu(reading["nvml"], call, "power average")["value"] = 78945
    # In an integer field, 0 can be the real value.
    of_gpu(reading["nvml"], call, "ecc corrected volatile")["value"] = 0
    of_gpu(reading["nvml"], "nvmlDeviceGetTotalEccErrors", "corrected volatile")["value"] = 0
    found = judged(reading)
    for name in (("NVML agrees", "min power limit: function and field"), ("model file", "module_power_watts.default")):
        assert found[name].outcome == "not run"
        assert "returns no value" in found[name].reason
    assert found["NVML agrees", "ECC errors, corrected volatile: function and field"].outcome == "passed"
    assert found["NVML", call].found == "2 values, 2 not filled in"


def test_maximum_of_instances_is_from_profiles_without_mig_mode():
    reading = whole_reading()
    of_gpu(reading["nvml"], "nvmlDeviceGetMaxMigDeviceCount")["value"] = 0
    assert judged(reading)["model file", "max_gpu_instances"].outcome == "differs"
    of_gpu(reading["nvml"], "nvmlDeviceGetMigMode")["value"] = [0, 0]
    check = judged(reading)["model file", "max_gpu_instances"]
    assert (check.outcome, check.found) == ("passed", "7")


@pytest.mark.parametrize(
    ("subsystem", "reserved", "vbios", "differing"),
    [
        (0x18BE10DE, 700, "96.00.A5.00.03", set()),
        (0x18BF10DE, 615, "96.00.A5.00.1A", set()),
        (0x18BF10DE, 700, "96.00.A5.00.1A", {"memory_reserved_mib"}),
        # Boards of one model can have different firmware versions.
        (0x18BE10DE, 615, "96.00.A5.00.1A", {"memory_reserved_mib"}),
        (0x18BF10DE, 615, "96.00.A5.00.22", set()),
        (0x18AA10DE, 700, "96.00.A5.00.03", {"pci_subsystem_id"}),
    ],
)
def test_board_is_compared_with_its_variant(subsystem, reserved, vbios, differing):
    reading = whole_reading()
    of_gpu(reading["nvml"], "nvmlDeviceGetPciInfo")["value"] = {"pciDeviceId": 0x233510DE, "pciSubSystemId": subsystem}
    of_gpu(reading["nvml"], "nvmlDeviceGetVbiosVersion")["value"] = vbios
    memory = {"total": 143771 << 20, "reserved": reserved << 20}
    of_gpu(reading["nvml"], "nvmlDeviceGetMemoryInfo", "version 2")["value"] = memory
    wanted = {"pci_subsystem_id", "memory_total_mib", "memory_reserved_mib", "vbios_version"}
    found = {what: check for (area, what), check in judged(reading).items() if area == "model file" and what in wanted}
    assert set(found) == wanted
    assert {what for what, check in found.items() if check.outcome == "differs"} == differing
    assert all("h200-141gb.json:" in found[what].where for what in differing)


def test_recently_busy_gpu_is_not_checked_as_idle():
    reading = whole_reading()
    values = {"nvmlDeviceGetMaxClockInfo": 1980, "nvmlDeviceGetClockInfo": 1980, "nvmlDeviceGetPowerUsage": 126000}
    for call, value in values.items():
        of_gpu(reading["nvml"], call, "" if "Power" in call else "graphics")["value"] = value
    of_gpu(reading["nvml"], "nvmlDeviceGetUtilizationRates")["value"] = {"gpu": 0, "memory": 0}
    found = judged(reading)
    for what in ("power_watts.idle", "idle_clocks_mhz.graphics"):
        check = found["model file", what]
        assert check.outcome == "not run" and "it runs at its highest clock" in check.reason


@pytest.mark.parametrize(("gpus", "outcome"), [(1, "passed"), (2, "differs")])
def test_only_a_single_gpu_can_have_no_nearest(gpus, outcome):
    reading = whole_reading()
    of_gpu(reading["nvml"], "nvmlDeviceGetTopologyNearestGpus", "single").update(error="InvalidArgument", code=2)
    reading["nvml"]["gpus"] += [dict(reading["nvml"]["gpus"][0], index=index) for index in range(1, gpus)]
    assert judged(reading)["NVML", "nvmlDeviceGetTopologyNearestGpus"].outcome == outcome


@pytest.mark.parametrize(
    ("parameters", "off"), [({"NvLinkDisable": "1"}, True), ({"NvLinkDisable": "0"}, False), ({}, False)]
)
def test_links_disabled_in_the_module_are_no_difference(kernel, parameters, off):
    lines = "".join("%s: %s\n" % pair for pair in parameters.items())
    (kernel / "proc/driver/nvidia/params").write_text('ResmanDebugLevel: 4294967295\n%sRmMsg: ""\n' % lines)
    reading = whole_reading()
    reading["files"] = read(kernel)
    assert reading["files"]["parameters"] == parameters
    of_gpu(reading["nvml"], "nvmlDeviceGetNvLinkState", "link 0").pop("value")
    for call, of in (
        ("nvmlDeviceGetNvLinkState", "link 0"),
        ("nvmlDeviceGetFieldValues", "nvlink count"),
        ("nvmlDeviceGetFieldValues", "nvlink speed common"),
    ):
        of_gpu(reading["nvml"], call, of).update(error="NotSupported", code=3)
    found = judged(reading)
    for what in ("nvlink_links", "nvlink_mb_per_second"):
        check = found["model file", what]
        assert check.outcome == ("not run" if off else "differs")
        assert ("NvLinkDisable=1" in check.reason) is off
    assert ("NvLinkDisable=1" in found["links", "NVLinks"].reason) is off


def test_values_without_simulated_counterpart_are_skipped():
    reading, other = whole_reading(), whole_reading()
    fields, state = "nvmlDeviceGetFieldValues", "nvmlDeviceGetNvLinkState"
    of_gpu(reading["nvml"], fields, "power min limit")["value"] = 0.0
    of_gpu(other["nvml"], fields, "power min limit").update(error="NotSupported", code=3)
    for each in (reading, other):
        of_gpu(each["nvml"], fields, "energy")["value"] = 5
    for call, of in ((state, "link 0"), (fields, "nvlink count")):
        of_gpu(reading["nvml"], call, of).pop("value", None)
        of_gpu(reading["nvml"], call, of).update(error="NotSupported", code=3)
        of_gpu(other["nvml"], call, of)["value"] = 1
    for value, outcomes in (("0", ("differs", "differs")), ("1", ("passed", "not run"))):
        reading["files"]["parameters"] = {"NvLinkDisable": value}
        found = {check.what: check for check in simulated.checks(reading, other, "")}
        assert (found[fields].outcome, found[state].outcome) == outcomes
    assert found[fields].found == "1 of 1, 1 not filled in by the driver"
    assert "NvLinkDisable=1" in found[state].reason


@pytest.mark.slow
def test_any_reading_of_a_host_is_judged_or_refused():
    judged = host_reading.judged("gpu-7", whole_reading(), False, acceptance.Limits())
    assert judged.report["acceptance"]["accepted"]
    refused = 0
    odd_values = (None, "<b>\x1b[31m", 1e308, {"a": [{}]})
    for number, path in enumerate(places(whole_reading())):
        for odd in odd_values if THOROUGH else odd_values[number % 4 :][:1]:
            reading = {"all": whole_reading()}
            at = reading
            for name in ("all", *path)[:-1]:
                at = at[name]
            at[("all", *path)[-1]] = odd
            try:
                made = host_reading.judged("gpu-7", reading["all"], False, acceptance.Limits())
                assert "\x1b" not in "".join(made.files.values()), path
                assert "<b>\\" not in made.files["gpu-check.html"], path
                assert all(
                    isinstance(line, str) for line in report.differences(made.report) + report.failures(made.report)
                )
            except FleetError as error:
                refused += 1
                assert error.where == "gpu-7", path
    assert refused > (100 if THOROUGH else 25)


def reading_of_chained_names(count):
    """Return a reading in which masking a GPU's name creates the next GPU's name.

    Each GPU's name is a part of the placeholder for the GPU before it.
    """
    reading = whole_reading()
    reading["nvml"]["gpus"] = [
        {
            "index": int(str(number % 10) * 18),
            "problem": None,
            "calls": [{"call": "nvmlDeviceGetUUID", "of": "", "value": str((number - 1) % 10) * 6}],
        }
        for number in range(2, count + 2)
    ]
    return reading


@pytest.mark.parametrize("count", [5, 9, 17])
@pytest.mark.parametrize("small", [False, True], ids=["large indexes", "small indexes"])
def test_hostile_names_do_not_multiply_on_masking(count, small):
    reading = reading_of_chained_names(count)
    for number, gpu in enumerate(reading["nvml"]["gpus"] if small else ()):
        gpu["index"] = number
    try:
        made = host_reading.judged("gpu-7", reading, False, acceptance.Limits())
    except FleetError as error:
        assert error.where == "gpu-7"
    else:
        assert sum(map(len, made.files.values())) < 1_000_000


def test_placeholders_are_not_masked_again():
    names = {"1" * 6: "(UUID of GPU %s)" % ("2" * 18), "2" * 6: "(UUID of GPU %s)" % ("1" * 18)}
    assert report.masked("1" * 6, names) == "(UUID of GPU 222222222222222222)"


@pytest.mark.parametrize(
    "change",
    [
        lambda gpus: gpus.extend(dict(gpus[0], index=number) for number in range(1, 65)),
        lambda gpus: gpus[0].update(index=10**18),
        lambda gpus: gpus[0].update(index=-1),
        lambda gpus: gpus.append(dict(gpus[0])),
    ],
    ids=["65 GPUs", "a large index", "a negative index", "one index twice"],
)
def test_reading_has_limited_gpus_with_distinct_indices(change):
    reading = whole_reading()
    change(reading["nvml"]["gpus"])
    with pytest.raises(FleetError, match="invalid format"):
        host_reading.judged("gpu-7", reading, False, acceptance.Limits())


@pytest.mark.parametrize("place", ["gpus", "mig_devices"])
def test_nvidia_smi_reading_has_limited_gpus(place):
    """Limit the number of GPUs, because each serial number is searched in all texts."""
    reading = whole_reading()
    (gpu,) = reading["nvidia_smi"]["gpus"]
    rows = {"gpus": dict(gpu, serial=None), "mig_devices": ["0", "0"]}
    reading["nvidia_smi"]["gpus"] += [dict(rows["gpus"], uuid="GPU-%d" % n, serial="1650%09d" % n) for n in range(63)]
    gpu["mig_devices"] = [["%d" % n, "0"] for n in range(64)]
    host_reading.judged("gpu-7", reading, False, acceptance.Limits())
    (reading["nvidia_smi"]["gpus"] if place == "gpus" else gpu["mig_devices"]).append(rows[place])
    with pytest.raises(FleetError, match="invalid format"):
        host_reading.judged("gpu-7", reading, False, acceptance.Limits())


def test_report_size_is_limited(monkeypatch):
    reading = whole_reading()
    call = {"call": "nvmlDeviceGetName", "of": "", "value": "x" * 900}
    reading["nvml"]["gpus"][0]["calls"] += [dict(call, of=str(number)) for number in range(1000)]
    assert host_reading.judged("gpu-7", reading, False, acceptance.Limits())
    # The real limit is 64 MiB. A text of this size would take as long as all other tests of the file.
    monkeypatch.setattr(host_reading, "_MOST_LETTERS", 900_000)
    with pytest.raises(FleetError, match="invalid format"):
        host_reading.judged("gpu-7", reading, False, acceptance.Limits())
