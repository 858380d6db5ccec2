# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run make check-gpu on healthy and faulty simulated GPUs.

Also test the model files that gpusim creates from the report.
"""

from __future__ import annotations

import json
import re
import shutil
import sys

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models, parse_model
from tests.integration.simulated_fleet import BareFleet, Fleet
from tests.integration.simulated_host import MODELS, ROOT, SIMULATOR

TOOL = ROOT / "tools" / "check_gpu.py"
CATALOGUE = load_models()
MIG = [{"gpus": [0], "sharing": "mig", "mig": [{"profile": "3g.40gb"}, {"profile": "2g.20gb"}]}]
#: Functions in the simulated library that do more than read.
CHANGES = re.compile(
    r"nvml(Init|Shutdown|ErrorString|InternalGetExportTable|\w+?(Set[A-Z]|Reset|Clear|Create|Destroy)\w*)"
)
#: Become another user, who may still read every file. The checkout and its Python may be in root's home.
BECOME = [
    "setpriv",
    "--clear-groups",
    "--inh-caps=-all,+dac_read_search",
    "--ambient-caps=-all,+dac_read_search",
]


class Run:
    """A run of the command, and the report that it wrote."""

    def __init__(self, host, *options, models=MODELS, user=None, library="none"):
        self.folder = host.folder / "report"
        command = [
            str(TOOL),
            "--directory",
            str(self.folder),
            "--models",
            str(models),
            "--library",
            str(library),
            *options,
        ]
        if user is not None:
            self.folder.mkdir(exist_ok=True)
            self.folder.chmod(0o777)
        become = [] if user is None else [*BECOME, f"--reuid={user}", f"--regid={user}"]
        self.done = host.run([*become, sys.executable, *command], check=False)
        self.said = self.done.stdout + self.done.stderr
        file = self.folder / "gpu-check.json"
        self.text = file.read_text() if file.exists() else ""
        self.report = json.loads(self.text) if self.text else {}
        self.page = (self.folder / "gpu-check.html").read_text() if self.text else ""

    def of(self, outcome, gpu=...):
        checks = self.report["checks"]
        return [check for check in checks if check["outcome"] == outcome and (gpu is ... or check["gpu"] == gpu)]

    def one(self, area, what, gpu):
        found = [c for c in self.report["checks"] if (c["area"], c["what"], c["gpu"]) == (area, what, gpu)]
        assert len(found) == 1, found
        return found[0]


@pytest.fixture
def every_model(host):
    return host.create([{"model": key} for key in CATALOGUE])


def test_every_simulated_model_matches_and_reproduces_its_file(every_model):
    run = Run(every_model)
    assert run.done.returncode == 0, run.said
    assert run.of("differs") == []
    assert [gpu["model"] for gpu in run.report["gpus"]] == list(CATALOGUE)
    assert run.report["summary"] == {
        outcome: sum(check["outcome"] == outcome for check in run.report["checks"])
        for outcome in ("passed", "differs", "not run")
    }
    for check in run.of("not run"):
        assert check["reason"], check
    assert run.one("kernel", "all checks", None)["reason"] == "simulated GPUs have no kernel driver"
    assert "reading NVML of GPU %d" % (len(CATALOGUE) - 1) in run.done.stderr
    for index, (key, model) in enumerate(CATALOGUE.items()):
        again(every_model, run, index, key, model)


def again(host, run, index, key, model):
    """Check that the model file made from the report equals the catalogue's model."""
    report = str(run.folder / "gpu-check.json")
    text = host.gpusim("record", report, "--gpu", str(index), "--key", key, "--models", str(MODELS))
    made = parse_model(text, key.lower() + ".json")
    assert made.boards == model.boards[:1]
    for name in (
        "pci_subsystem_id", "brand", "architecture", "compute_capability", "memory_total_mib", "memory_reserved_mib",
        "bar1_total_mib", "memory_bus_width_bits", "row_remapper_banks", "memory_power_watts", "supported_clocks_mhz",
        "idle_fan_percent",
        "idle_performance_state", "application_clock_mhz", "temperature_margins", "nvlink_links", "nvlink_mb_per_second",
        "c2c_links", "c2c_mb_per_second", "vbios_version", "board_part_number",
        "mig_capable", "mig_needs_reset", "compute_slices", "placement_units", "max_gpu_instances",
    ):  # fmt: skip
        if getattr(model, name) is not None:
            assert getattr(made, name) == getattr(model, name), (key, name)
    for name in (
        "power_watts",
        "module_power_watts",
        "clocks_mhz",
        "idle_clocks_mhz",
        "temperatures_celsius",
        "memory_temperatures_celsius",
        "pcie",
        "inforom",
    ):
        known = {part: value for part, value in getattr(model, name).items() if value is not None}
        assert {part: getattr(made, name)[part] for part in known} == known, (key, name)
    there = {profile.name: profile for profile in made.profiles}
    assert set(there) == {profile.name for profile in model.profiles}, key
    for profile in model.profiles:
        for name in vars(profile):
            if name != "unconfirmed" and getattr(profile, name) is not None:
                assert getattr(there[profile.name], name) == getattr(profile, name), (key, profile.name, name)


def test_card_with_disabled_links_is_recorded_as_such(host):
    host.create([{"model": "H100-80GB"}])
    run = Run(host)
    run.report["readings"]["files"]["parameters"] = {"NvLinkDisable": "1"}
    (run.folder / "gpu-check.json").write_text(json.dumps(run.report))
    report = str(run.folder / "gpu-check.json")
    text = host.gpusim("record", report, "--gpu", "0", "--key", "H100-80GB", "--models", str(MODELS))
    made = parse_model(text, "h100-80gb.json")
    assert (made.nvlink_links, made.nvlink_mb_per_second) == (0, None)
    assert "NvLinkDisable=1" in made.unconfirmed["nvlink_links"]


def test_report_has_serial_numbers_and_uuids_only_on_request(host):
    host.create([{"model": "H100-80GB", "count": 2}])
    assert host.module("mig", layout=MIG)["changed"]
    gpus = json.loads(host.gpusim("show", "--json"))["gpus"]
    names = [gpu[name] for gpu in gpus for name in ("uuid", "serial")]
    run = Run(host)
    assert run.done.returncode == 0, run.said
    assert not [name for name in names if name in run.text + run.page]
    assert not re.search(r"(GPU|MIG)-[0-9a-f]{8}-", run.text + run.page)
    assert "(UUID of GPU 1)" in run.text
    told = Run(host, "--identify")
    assert [name for name in names if name not in told.text] == []


def test_every_reading_function_of_the_simulated_library_is_called(host):
    host.create([{"model": "H100-80GB", "count": 2}])
    assert host.module("mig", layout=MIG)["changed"]
    host.gpusim("calls", "--clear")
    run = Run(host)
    assert run.done.returncode == 0, run.said
    called = {line.split()[1] for line in host.gpusim("calls").splitlines()}
    source = "".join(path.read_text() for path in (SIMULATOR / "src").glob("*.c"))
    names = set(
        re.findall(r"\bF_(nvml\w+)|^nvmlReturn_t (nvml\w+)\(|^GPU_(?:TEXT|NUMBER)\((nvml\w+)", source, re.MULTILINE)
    )
    there = {name for group in names for name in group if name}
    assert len(there) > 150
    left = {re.sub(r"_v\d$", "", name) for name in there} - {re.sub(r"_v\d$", "", name) for name in called}
    left = {name for name in left if not CHANGES.fullmatch(name)}
    assert left == set()


def test_a_difference_names_the_line_of_the_model_file(host, tmp_path):
    host.create([{"model": "H100-80GB"}])
    models = tmp_path / "models"
    shutil.copytree(MODELS, models)
    file = models / "h100-80gb.json"
    text = file.read_text()
    for old, new in (
        ('"memory_total_mib": 81559', '"memory_total_mib": 81560'),
        ('"memory": 2619, "video": 1545}', '"memory": 2619, "video": 1546}'),
        (
            '{"name": "2g.20gb", "nvml_profile": 1, "profile_id": 14',
            '{"name": "2g.20gb", "nvml_profile": 1, "profile_id": 13',
        ),
    ):
        assert text.count(old) == 1, old
        text = text.replace(old, new)
    file.write_text(text)
    lines = text.splitlines()
    run = Run(host, models=models)
    assert run.done.returncode == 1
    found = {check["what"]: check for check in run.of("differs")}
    assert set(found) == {"memory_total_mib", "clocks_mhz.video", "profiles.2g.20gb.profile_id"}
    for what, part in (
        ("memory_total_mib", '"memory_total_mib": 81560'),
        ("clocks_mhz.video", '"clocks_mhz": '),
        ("profiles.2g.20gb.profile_id", '{"name": "2g.20gb"'),
    ):
        path, _colon, number = found[what]["where"].partition(":")
        assert path.endswith("models/h100-80gb.json")
        assert part in lines[int(number) - 1]
    assert (found["memory_total_mib"]["expected"], found["memory_total_mib"]["found"]) == ("81560", "81559")
    assert "gpu 0: model file: memory_total_mib: expected 81560, found 81559" in run.done.stdout


def test_unknown_model_is_one_difference(host, tmp_path):
    host.create([{"model": "H100-80GB"}])
    models = tmp_path / "models"
    shutil.copytree(MODELS, models)
    (models / "h100-80gb.json").unlink()
    run = Run(host, models=models)
    assert run.done.returncode == 1
    (check,) = run.of("differs")
    assert check["what"] == "which model it is"
    assert "2330" in check["found"] and "gpusim record" in check["reason"]


def test_lost_gpu_is_named_and_others_are_checked(host):
    host.create([{"model": "A100-40GB", "count": 3}])
    host.gpusim("lose", "1")
    run = Run(host)
    assert run.done.returncode == 1
    assert run.one("NVML", "nvmlDeviceGetHandleByIndex", 1)["found"] == "GpuIsLost"
    assert {check["gpu"] for check in run.of("differs")} == {None, 1}
    assert [len(run.of("passed", gpu)) > 100 for gpu in (0, 1, 2)] == [True, False, True]
    assert "Traceback" not in run.said


def test_each_failing_function_is_a_difference(host):
    host.create([{"model": "T4-16GB"}])
    host.gpusim("fail", "nvmlDeviceGetEccMode", "--code", "UNKNOWN")
    run = Run(host)
    assert run.done.returncode == 1
    assert [(check["area"], check["what"], check["found"]) for check in run.of("differs")] == [
        ("NVML", "nvmlDeviceGetEccMode", "Unknown")
    ]
    assert "Unknown" in run.one("ECC", "ECC mode", 0)["reason"]


def test_busy_gpu_is_not_compared_with_idle_figures(host):
    host.create([{"model": "H100-80GB"}])
    host.gpusim("load", "0", "--pattern", "constant", "--utilization", "90", "--power", "600")
    run = Run(host)
    assert run.done.returncode == 0, run.said
    check = run.one("model file", "power_watts.idle", 0)
    assert check["outcome"] == "not run"
    assert "90 % busy" in check["reason"]
    assert run.one("model file", "power_watts.max", 0)["outcome"] == "passed"


@pytest.mark.parametrize("code", ["kill", "stop"])
def test_unresponsive_driver_ends_the_command_in_time(host, code):
    host.create([{"model": "T4-16GB"}])
    host.gpusim("fail", "nvmlDeviceGetPowerUsage", "--code", code)
    run = Run(host, "--timeout", "5")
    assert run.done.returncode == 3
    assert run.said.splitlines()[-1].startswith("check-gpu: this host: the query ")
    assert "Traceback" not in run.said
    assert not run.text


def test_without_root_the_rest_is_checked(host):
    host.create([{"model": "H100-80GB"}])
    assert host.module("mig", layout=MIG)["changed"]
    run = Run(host, user=65534)
    assert run.done.returncode == 0, run.said
    assert run.report["as_root"] is False
    assert run.one("NVML", "nvmlDeviceGetComputeRunningProcesses", 0)["reason"] == "needs root"
    assert run.one("NVML", "nvmlDeviceGetName", 0)["outcome"] == "passed"


def test_without_a_driver_the_command_says_so(host):
    run = Run(host)
    assert run.done.returncode == 3
    assert "check-gpu: this host: NVML does not start" in run.said
    assert "Traceback" not in run.said


def test_answers_are_compared_with_the_simulated_library(host):
    host.create([{"model": "H100-80GB"}, {"model": "T4-16GB"}], driver_version="570.148.08")
    same = Run(host, library=host.library)
    assert same.done.returncode == 0, same.said
    assert same.one("simulated library", "nvmlDeviceGetNvLinkState", 1)["outcome"] == "passed"
    assert len([check for check in same.of("passed") if check["area"] == "simulated library"]) > 150
    host.gpusim("fail", "nvmlDeviceGetRemappedRows", "--code", "NOT_SUPPORTED")
    other = Run(host, library=host.library)
    assert other.done.returncode == 1
    check = other.one("simulated library", "nvmlDeviceGetRemappedRows", 0)
    assert (check["expected"], check["found"]) == ("a value", "NotSupported")
    assert Run(host).one("simulated library", "all functions", None)["reason"] == "--library none was given"


@pytest.mark.parametrize(
    ("compared_with", "layout", "reason"),
    [("/nowhere", None, "cannot be read"), (None, MIG, "GPU 0 is in MIG mode, but simulated GPUs start without it")],
)
def test_incomparable_answers_have_a_reason(host, compared_with, layout, reason):
    host.create([{"model": "H100-80GB"}])
    if layout:
        assert host.module("mig", layout=layout)["changed"]
    run = Run(host, library=compared_with or host.library)
    assert run.done.returncode == 0, run.said
    assert reason in run.one("simulated library", "all functions", None)["reason"]


def play(fleet, *options):
    return fleet.play(dict.fromkeys(fleet.hosts), *options, playbook="playbooks/check_gpu.yml")


def words(run):
    return " ".join((run.stdout + run.stderr).split())


def test_playbook_writes_a_report_for_each_host(library, tmp_path):
    fleet = Fleet(tmp_path, library, ["one", "two"])
    fleet.hosts["two"].gpusim("fail", "nvmlDeviceGetEccMode", "--code", "UNKNOWN")
    reports = tmp_path / "reports"
    dry = play(fleet, "--check", "-e", f"gpu_check_dir={reports}")
    assert not reports.exists()
    assert "one: " in words(dry)
    fleet.hosts["two"].gpusim("fail", "nvmlDeviceGetEccMode", "--code", "UNKNOWN")
    run = play(fleet, "-e", f"gpu_check_dir={reports}")
    said = words(run)
    assert run.returncode == 2, said
    assert f"{reports}/one/gpu-check.html" in said
    assert "gpu 0: NVML: nvmlDeviceGetEccMode: expected an answer, found Unknown" in said
    assert "fatal: [two]" in said and "fatal: [one]" not in said
    made = {name: json.loads((reports / name / "gpu-check.json").read_text()) for name in fleet.hosts}
    assert [made[name]["summary"]["differs"] for name in ("one", "two")] == [0, 1]
    assert [made[name]["host"] for name in ("one", "two")] == ["one", "two"]
    assert (reports / "one" / "gpu-check.html").stat().st_mode & 0o007 == 0
    for name, host in fleet.hosts.items():
        (gpu,) = json.loads(host.gpusim("show", "--json"))["gpus"]
        assert gpu["uuid"] not in json.dumps(made[name])


def test_playbook_lends_pynvml_and_reports_unreadable_hosts(library, tmp_path):
    fleet = BareFleet(tmp_path, library, ["one", "two"])
    fleet.hosts["two"].gpusim("fail", "nvmlInitWithFlags", "--code", "UNKNOWN")
    run = play(fleet, "-e", f"gpu_check_dir={tmp_path}/reports")
    said = words(run)
    assert run.returncode == 2, said
    assert "fatal: [one]" not in said
    assert "NVML does not start" in said
    assert (tmp_path / "reports" / "one" / "gpu-check.json").exists()
    assert not (tmp_path / "reports" / "two").exists()
    assert "Traceback" not in said
