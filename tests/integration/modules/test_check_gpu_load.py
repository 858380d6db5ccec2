# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Run make check-gpu with --load.

NVML is simulated, the limiter is real, and the CUDA driver is a stub.
"""

from __future__ import annotations

import dataclasses
import json
import os
import subprocess
import sys

import pytest

from tests.integration.patience import wait_until
from tests.integration.simulated_host import ROOT
from tests.limiter.card import Card
from tests.limiter.limiter_lab import Built

TOOL = ROOT / "tools" / "check_gpu.py"
sys.path.append(str(ROOT / "tools" / "gpu_load"))

import frameworks
import judge
import measure

QUOTA, CONTEXT = 1 << 30, 400 << 20


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    return Built(tmp_path_factory.mktemp("stub"))


@pytest.fixture
def run(host, built, tmp_path):
    """Run the command on a host with one GPU, and return its report's checks by area."""

    def run(*options, cuda=True):
        host.create([{"model": "H100-80GB"}])
        libraries = [str(host.library), *([str(built.stub)] if cuda else [])]
        variables = {**Card(tmp_path / "card").environment(), "LD_LIBRARY_PATH": ":".join(libraries)}
        command = ["env", *("%s=%s" % one for one in variables.items()), sys.executable, str(TOOL)]
        folder = tmp_path / "report"
        done = host.run([*command, "--directory", str(folder), "--library", "none", "--load", *options], check=False)
        assert done.returncode in (0, 1), done.stderr
        checks = json.loads((folder / "gpu-check.json").read_text())["checks"]
        return {area: [check for check in checks if check["area"] == area] for area in ("load", "vGPU limiter", "MPS")}

    return run


def test_tenant_gets_its_quota_and_stub_limits_are_not_run(run):
    found = run()
    limiter = {check["what"]: check for check in found["vGPU limiter"]}
    got = [int(check["found"]) for what, check in limiter.items() if what.endswith("bytes allocated by a tenant")]
    # The limiter limits linear memory to the exact byte. It allocates rows, arrays and physical memory in larger units.
    assert len(got) == 6 and all(QUOTA - (2 << 20) < each <= QUOTA for each in got), limiter
    not_run = {what for what, check in limiter.items() if check["outcome"] == "not run"}
    assert "no image: set --image" in limiter["container: linear memory"]["reason"]
    words = ("percent", "container", "module")
    assert not_run == {what for what in limiter if any(word in what for word in words)} and len(not_run) == 6
    # The cost of a launch depends on this machine's load.
    others = {what: check for what, check in limiter.items() if what not in not_run and "cost" not in what}
    assert [check for check in others.values() if check["outcome"] != "passed"] == []
    assert {check["outcome"] for check in found["load"]} == {"not run"}
    assert [check["reason"] for check in found["MPS"]] == ["nvidia-cuda-mps-control is not installed"]


def test_without_cuda_nothing_is_measured_with_a_reason(run):
    found = run(cuda=False)
    assert all("libcuda.so.1" in check["reason"] for check in found["load"] + found["vGPU limiter"])


def test_unknown_gpu_is_not_run(run):
    assert {check["reason"] for check in run("--gpu", "7")["load"]} == {"the host has no GPU 7"}


def test_shares_are_measured_in_the_time_of_the_card(built, tmp_path, monkeypatch):
    """Measure shares in the stub's own time.

    That time does not depend on this machine.
    """
    preload = str(built.stub / "libcuda.so.1")
    for name, value in {**Card(tmp_path / "card").environment(), "LD_PRELOAD": preload}.items():
        monkeypatch.setenv(name, value)
    card = measure.Card(0, "#0", tmp_path, 600, lambda text: None)
    took = {}
    for percent in (None, 20, 80):
        monkeypatch.setenv("STUB_CLOCK", str(tmp_path / ("clock-%s" % percent)))
        tenant = (
            measure.environment(card, built.library, measure.Tenant("share-%s" % percent, percent)) if percent else {}
        )
        took[percent] = {"took": measure._kernel_seconds(card, tenant)}
    found = measured(bare_seconds=took.pop(None), shares={str(percent): said for percent, said in took.items()})
    shares = {what: outcome for what, outcome in judged(found).items() if what.startswith("share of")}
    assert shares == {"share of 20 percent": "passed", "share of 80 percent": "passed"}


def test_holders_of_a_simulated_gpu_are_those_of_nvml(host):
    host.create([{"model": "H100-80GB", "count": 2}])
    command = [str(host.bin / "gpusim"), "run", "--gpu", "1", "--memory", "400MiB", "--", "sleep", "300"]
    script = "import json, sys; sys.path[:0] = %r; import measure; print(json.dumps(measure.holders_of(1, int(sys.argv[1]))))"
    paths = [str(ROOT / "collections"), str(ROOT / "tools" / "gpu_load")]
    with host.popen(command) as job:
        try:
            wait_until(lambda: json.loads(host.gpusim("show", "--json"))["processes"], "the process is on the GPU")
            done = host.run([sys.executable, "-c", script % paths, str(job.pid)])
        finally:
            job.kill()
    assert json.loads(done.stdout) == {"kinds": ["process"], "bytes": [400 << 20], "command": ["process"]}


SERIES = """
import json, pathlib, sys
sys.path[:0] = %r
import exporter
with exporter.running(pathlib.Path(sys.argv[1])) as series:
    for uuid in sys.stdin:
        print(json.dumps(series(uuid.strip())), flush=True)
"""


def test_the_series_of_the_exporter_follow_a_simulated_load(host, tmp_path):
    host.create([{"model": "H100-80GB", "count": 2}])
    uuid = json.loads(host.gpusim("show", "--json"))["gpus"][1]["uuid"]
    paths = [str(ROOT / "collections"), str(ROOT / "tools" / "gpu_load")]
    command = [sys.executable, "-c", SERIES % paths, str(tmp_path / "exporter")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    with host.popen(command, **pipes) as reader:

        def read():
            reader.stdin.write("%s\n" % uuid)
            reader.stdin.flush()
            return json.loads(reader.stdout.readline())

        ratio = "openfleet_gpu_graphics_active_ratio"
        wait_until(lambda: ratio in read(), "the exporter has two samples")
        found = {"rest": read(), "after": read()}
        host.gpusim("load", "1", "--pattern", "constant", "--utilization", "90")
        with host.popen(
            [str(host.bin / "gpusim"), "run", "--gpu", "1", "--memory", "1MiB", "--", "sleep", "300"]
        ) as job:
            try:
                wait_until(lambda: read().get(ratio, 0) > 0.8, "the exporter sees the load")
                found["busy"] = read()
            finally:
                job.kill()
        reader.stdin.close()
    outcomes = [check.outcome for check in judge.series(1, found)]
    assert outcomes == ["passed"] * 10, list(judge.series(1, found))


# --- a tenant in a container --------------------------------------------------------------------------------------------

#: A program that replaces a container. It runs without one, with the environment and the files that a container would
#: get.
ENGINE = """#!%s
import os, pathlib, sys
words = sys.argv[1:]
if words[:2] == ["image", "inspect"]:
    sys.exit(words[2] != "here")
if words[0] == "rm":
    sys.exit(0)
assert "--pull=never" in words and "--network=none" in words and "nvidia.com/gpu=all" in words, words
given = {name: [words[n + 1] for n, word in enumerate(words) if word == name] for name in ("--volume", "--env")}
mounts = {inside: host for host, inside, access in (volume.split(":") for volume in given["--volume"])}
environment = dict(os.environ, **dict(variable.split("=", 1) for variable in given["--env"]))
library = pathlib.Path(pathlib.Path(mounts["/etc/ld.so.preload"]).read_text().strip())
root = pathlib.Path(mounts["/etc/openfleet-gpu/vgpu/container"]).parents[3]
link = root / "proc/self/ns/pid"
link.parent.mkdir(parents=True)
link.symlink_to(pathlib.Path("/proc/self/ns/pid").readlink())
environment["LD_PRELOAD"] = ":".join([mounts[str(library.parent)] + "/" + library.name, environment["LD_PRELOAD"]])
environment["OPENFLEET_VGPU_ROOT"] = str(root)
at = words.index("/program.py")
assert words[at - 2 : at] == ["here", "python3"], words
os.execve(sys.executable, [sys.executable, mounts["/program.py"], *words[at + 1 :]], environment)
"""


@pytest.fixture
def engine(built, tmp_path, monkeypatch):
    """Install a stand-in for podman and a CDI specification.

    Return a card with a container image that the stand-in can run.
    """
    preload = str(built.stub / "libcuda.so.1")
    (tmp_path / "bin").mkdir()
    tool = tmp_path / "bin" / "podman"
    tool.write_text(ENGINE % sys.executable)
    tool.chmod(0o755)
    variables = {**Card(tmp_path / "card").environment(), "LD_PRELOAD": preload}
    for name, value in {**variables, "PATH": "%s:%s" % (tool.parent, os.environ["PATH"])}.items():
        monkeypatch.setenv(name, value)
    (tmp_path / "cdi").mkdir()
    spec = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [{"name": "all"}], "hooks": "nvidia-cdi-hook"}
    (tmp_path / "cdi" / "nvidia.json").write_text(json.dumps(spec))
    monkeypatch.setattr(measure, "CDI_FOLDERS", (tmp_path / "cdi",))
    return measure.Card(0, "#0", tmp_path, 600, lambda text: None, "here")


def test_a_tenant_in_a_container_gets_its_quota(engine, built):
    said = measure._in_container(engine, built.library)
    assert QUOTA - (2 << 20) < said["held"] <= QUOTA
    found = judged(measured(memory={"container: linear": said}))
    container = {what: outcome for what, outcome in found.items() if what.startswith("container: linear memory")}
    assert len(container) == 4 and set(container.values()) == {"passed"}, found


@pytest.mark.parametrize(
    "image, engines, reason",
    [
        (None, ("podman",), "no image: set --image"),
        ("here", ("no-engine",), "neither podman nor docker is installed"),
        ("elsewhere", ("podman",), "podman has no image elsewhere"),
    ],
)
def test_unavailable_container_is_not_run(engine, built, monkeypatch, image, engines, reason):
    monkeypatch.setattr(measure, "ENGINES", engines)
    with pytest.raises(measure.NotMeasuredError, match=reason):
        measure._in_container(dataclasses.replace(engine, image=image), built.library)


def test_without_a_specification_of_gpus_no_container_is_started(engine, built, tmp_path):
    (tmp_path / "cdi" / "nvidia.json").unlink()
    with pytest.raises(measure.NotMeasuredError, match=r"no CDI specification of nvidia\.com/gpu"):
        measure._in_container(engine, built.library)


# --- verdicts on recorded figures -----------------------------------------------------------------------------------


#: An MPS server, its client, and a program that does not use MPS.
MPS = {"pid": 7, "servers": ["9"], "clients": ["7"], "direct": 8, "nvml": {"compute": [7, 8, 9], "mps": [7]}}


def measured(**limiter):
    state = {"utilization": 100, "power_watts": 300.0, "sm_mhz": 1980, "processes": {7: CONTEXT}}
    rest = {"utilization": 0, "power_watts": 70.0, "sm_mhz": 345, "processes": {}}
    memory = {"held": QUOTA, "code": 2, "total": QUOTA, "free": QUOTA, "free_after": QUOTA, "card": QUOTA + CONTEXT}
    found = {
        "quota": QUOTA,
        "memory": {"linear": memory},
        "module": {"charged": CONTEXT + (1 << 20), "card": CONTEXT},
        "two_processes": {"held": QUOTA, "codes": [2, 2]},
        "launch_seconds": {"bare": 2e-6, "tenant": 2.1e-6, "throttled": 4e-6},
        "bare_seconds": {"took": 1.5},
        "shares": {"20": {"took": 7.5}, "50": {"took": 3.0}},
        "two_tenants": {"kernels": [300, 700]},
    }
    bare = {work: {"rate": 100.0, "active": 1.0} for work in ("matmul", "transformer", "graph", "short")}
    # Clocks are higher while the GPU is partly idle, so rates are above the share. Short kernels use less than their
    # share.
    shares = {
        str(percent): {
            **{work: {"rate": 1.2 * percent, "active": percent / 100} for work in bare},
            "short": {"rate": 95.0, "active": 0.1},
        }
        for percent in frameworks.SHARES_PERCENT["torch"]
    }
    torch = {
        "shares": {"version": "2.11", "bare": bare, **shares},
        "memory": {"total": 8 << 30, "held": 8 << 30, "refused": 4, "continues": True},
        "pair": {"fixed": {"rates": [32.0, 71.0], "active": 0.99}},
    }
    holders = {"kinds": ["process"], "bytes": [CONTEXT], "command": ["process"]}
    load = {"rest": rest, "busy": state, "after": rest, "pid": 7, "nodes": ["/dev/nvidia0"], "holders": holders}
    quiet = {
        "gpu_utilization_Percentage": 0.0,
        "openfleet_gpu_graphics_active_ratio": 0.0,
        "openfleet_gpu_processes": 0.0,
    }
    busy = {
        "gpu_utilization_Percentage": 100.0,
        "openfleet_gpu_graphics_active_ratio": 0.97,
        "openfleet_gpu_processes": 1.0,
    }
    load["series"] = {"rest": quiet, "busy": busy, "after": {**quiet, "gpu_utilization_Percentage": 1.0}}
    return {"load": load, "limiter": {**found, **limiter}, "frameworks": {"torch": torch}, "mps": {**MPS}}


def judged(found):
    return {check.what: check.outcome for check in judge.checks(0, found, False, 1.5)}


def test_correct_card_passes():
    outcomes = judged(measured())
    # The card has no GPM, so these outcomes are not `passed`.
    assert [what for what, outcome in outcomes.items() if outcome != "passed"] == [
        "openfleet_gpu_sm_active_ratio %s" % when for when in ("at rest", "under load", "afterwards")
    ]


@pytest.mark.parametrize(
    "state, name, value",
    [
        ("rest", "gpu_utilization_Percentage", 2.0),
        ("busy", "gpu_utilization_Percentage", 40.0),
        ("busy", "openfleet_gpu_graphics_active_ratio", 0.4),
        ("after", "openfleet_gpu_graphics_active_ratio", 0.2),
        ("busy", "openfleet_gpu_processes", 0.0),
    ],
)
def test_signals_that_do_not_follow_the_load_differ(state, name, value):
    found = measured()
    found["load"]["series"][state] = {**found["load"]["series"][state], name: value}
    assert list(judged(found).values()).count("differs") == 1


@pytest.mark.parametrize(
    "limiter, what",
    [
        ({"two_processes": {"held": QUOTA + 1, "codes": [2, 2]}}, "two processes of a tenant: total bytes"),
        ({"shares": {"20": {"took": 5.0}}}, "share of 20 percent"),
        ({"module": {"charged": 0, "card": CONTEXT}}, "bytes charged for a context and a module"),
        ({"two_tenants": {"kernels": [500, 500]}}, "two tenants of 30 and 70 percent: share of the first"),
        (
            {"launch_seconds": {"bare": 2e-6, "tenant": 4e-6, "throttled": 4e-6}},
            "added cost of a launch of an unthrottled tenant",
        ),
    ],
)
def test_failing_limiter_differs(limiter, what):
    assert [name for name, outcome in judged(measured(**limiter)).items() if outcome == "differs"] == [what]


@pytest.mark.parametrize(
    "change", [{"kinds": ["device_handle"]}, {"kinds": []}, {"bytes": [CONTEXT + 1]}, {"bytes": []}, {"command": []}]
)
def test_holders_that_miss_the_process_differ(change):
    found = measured()
    found["load"]["holders"].update(change)
    assert list(judged(found).values()).count("differs") == 1


@pytest.mark.parametrize(
    "where, value, what",
    [
        (("shares", "20", "matmul", "active"), 0.27, "torch 2.11: matmul with a share of 20 percent"),
        (("shares", "20", "matmul", "active"), 0.13, "torch 2.11: matmul with a share of 20 percent"),
        (("shares", "50", "graph", "rate"), 40.0, "torch 2.11: graph with a share of 50 percent"),
        (("shares", "50", "graph"), {"rate": 60.0}, "torch 2.11: graph with a share of 50 percent"),
        (("shares", "80", "short", "rate"), 60.0, "torch 2.11: short with a share of 80 percent"),
        (("memory", "held"), (8 << 30) + 1, "torch 2.11: memory: bytes allocated by a tenant"),
        (("memory", "refused"), 0, "torch 2.11: memory: bytes allocated by a tenant"),
        (("memory", "total"), 80 << 30, "torch 2.11: memory: size of the card shown to the tenant"),
        (("memory", "continues"), False, "torch 2.11: memory: the program continues after a refusal"),
        (("pair", "fixed", "rates"), [33.0, 48.0], "torch: transformer of two tenants of 30 and 70 percent, fixed"),
    ],
)
def test_unlimited_framework_differs(where, value, what):
    found = measured()
    of = found["frameworks"]["torch"]
    for key in where[:-1]:
        of = of[key]
    of[where[-1]] = value
    assert [name for name, outcome in judged(found).items() if outcome == "differs"] == [what]


def test_missing_framework_is_not_run(tmp_path):
    card = measure.Card(0, "#0", tmp_path, 600, lambda text: None)
    card.__dict__["uuid"] = "GPU-1"
    found = measured()
    found["frameworks"] = {"jax": frameworks.measure(card, tmp_path / "none.so")["jax"]}
    check = next(one for one in judge.checks(0, found, False, 1.5) if one.area == "frameworks")
    assert (check.what, check.outcome, check.reason) == ("jax", "not run", "Python has no module jax")


def test_unreadable_holders_are_not_run():
    found = measured()
    found["load"]["holders"]["command"] = None
    assert judged(found)["gpu-layout holders: the process"] == "not run"
    found["load"]["holders"] = "NVML does not start"
    assert judged(found)["holders"] == "not run"


@pytest.mark.parametrize(
    "change", [{"held": QUOTA + 1}, {"code": 0}, {"total": 80 << 30}, {"free_after": 0}, {"card": 2 * QUOTA}]
)
def test_memory_beyond_the_quota_differs(change):
    found = measured()
    found["limiter"]["memory"]["linear"].update(change)
    assert list(judged(found).values()).count("differs") == 1


@pytest.mark.parametrize("change", [{"utilization": 3}, {"power_watts": 60.0}, {"sm_mhz": 210}, {"processes": {8: 1}}])
def test_load_unseen_by_nvml_differs(change):
    found = measured()
    found["load"]["busy"].update(change)
    assert list(judged(found).values()).count("differs") == 1


@pytest.mark.parametrize(
    ("listed", "outcome"),
    [
        ({"compute": [7, 8, 9], "mps": [7]}, "passed"),
        ({"compute": [8, 9], "mps": [7]}, "differs"),
        ({"compute": [7, 8, 9], "mps": []}, "differs"),
        ({"compute": [7, 8, 9], "mps": [7, 8]}, "differs"),
        ({"compute": [7, 9], "mps": [7]}, "differs"),
        ({"compute": [7, 8, 9], "mps": None}, "not run"),
    ],
)
def test_nvml_must_distinguish_mps_clients(listed, outcome):
    found = measured()
    found["mps"]["nvml"] = listed
    assert judged(found)["NVML distinguishes the client from a program without MPS"] == outcome


@pytest.mark.parametrize("clients", [[], ["8"]])
def test_daemon_without_its_client_differs(clients):
    found = measured()
    found["mps"]["clients"] = clients
    assert judged(found)["the daemon lists the client"] == "differs"
