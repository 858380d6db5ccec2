# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Test time slices in plans, and in the output of nvidia-smi (version 535)."""

from __future__ import annotations

import dataclasses
import subprocess

import pytest

from ansible_collections.openfleet.gpu.plugins.module_utils.change import planner
from ansible_collections.openfleet.gpu.plugins.module_utils.change.targets import targets
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import NvmlError, PlanError
from ansible_collections.openfleet.gpu.plugins.module_utils.model import Setting
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.time_slicing.apply import set_time_slice
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.time_slicing.observe import with_time_slices
from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.time_slicing.record import Record

HEAD = "+---+\n| GPU compute policies:               |\n| GPU     Name           Value        |\n|====|\n"
ROW = "|   %d   Timeslice       %-14s|\n+---+\n"
GPUS = assumed_gpus(["L40S-48GB", "L40S-48GB", "H100-80GB"])


class NvidiaSmi:
    """List and set time slices as nvidia-smi does.

    Accepts any number. The list ends at the first GPU without time slices.
    """

    NAMES = ("Default", "Short", "Medium", "Long")

    def __init__(self, *slices, keeps=True):
        self.slices, self.keeps = list(slices), keeps
        self.calls = []

    def __call__(self, command, **_options):
        self.calls.append(command[2:])
        assert command[:2] == ["nvidia-smi", "compute-policy"]
        gpus = range(len(self.slices))
        if "-i" in command:
            gpus = [[gpu.uuid for gpu in GPUS].index(command[command.index("-i") + 1])]
        out, code = "", 0
        if "--set-timeslice" in command:
            number = int(command[command.index("--set-timeslice") + 1])
            for gpu in gpus:
                if self.slices[gpu] is None:
                    return done(f"Failed to set timeslice policy with value Long for GPU {gpu} : Not Supported\n", 3)
                if self.keeps:
                    self.slices[gpu] = self.NAMES[number]
                out += f"Successfully set timeslice policy with value {self.NAMES[number]} for GPU {gpu}\n"
            return done(out, 0)
        for gpu in gpus:
            if self.slices[gpu] is None:
                out += f"Failed to get compute policies for GPU {gpu} : Not Supported\n"
                code = 3
                break
            out += ROW % (gpu, self.slices[gpu])
        return done(HEAD + out, code)


def done(out, code):
    return subprocess.CompletedProcess([], code, out, "")


def absent(command, **_options):
    raise FileNotFoundError(command[0])


def seen(smi):
    return [dataclasses.astuple(gpu.settings["time_slice"]) for gpu in with_time_slices(GPUS, smi)]


def sliced(gpu, name, problem=None, **fields):
    """Return the GPU with this time slice.

    None means that the slice was not read. If `problem` is given, it is the reason why the slice is unavailable.
    """
    read = {} if name is problem is None else {"time_slice": Setting(name, problem)}
    return dataclasses.replace(gpu, settings=read, **fields)


def test_all_gpus_are_read_by_one_call():
    smi = NvidiaSmi("Default", "Long", "Unknown")
    assert seen(smi) == [("default", None), ("long", None), ("unknown", None)]
    assert len(smi.calls) == 1


def test_gpu_without_time_slices_hides_no_later_one():
    none = "Failed to get compute policies for GPU 1 : Not Supported"
    assert seen(NvidiaSmi("Short", None, "Medium")) == [("short", None), (None, none), ("medium", None)]


def test_first_gpu_without_time_slices_hides_no_later_one():
    none = "Failed to get compute policies for GPU 0 : Not Supported"
    assert seen(NvidiaSmi(None, "Short", "Medium")) == [(None, none), ("short", None), ("medium", None)]


def test_failing_gpu_at_the_end_of_the_list_hides_no_other():
    smi = NvidiaSmi("Short", "Long", "Medium")

    def beside_a_sick_gpu(command, **options):
        if "-i" in command:
            return smi(command, **options)
        return done("Unable to determine the device handle for GPU0000:65:00.0: Unknown Error\n", 255)

    assert seen(beside_a_sick_gpu) == [("short", None), ("long", None), ("medium", None)]


def test_without_nvidia_smi_a_reason_is_reported():
    assert seen(absent) == [(None, "nvidia-smi is not installed")] * 3


def test_without_nvidia_smi_the_fix_is_to_install_it():
    def missing(command, **_options):
        raise FileNotFoundError(command[0])

    with pytest.raises(NvmlError) as raised:
        set_time_slice(GPUS[0].uuid, "long", missing)
    assert "nvidia-smi is not installed" in raised.value.problem and raised.value.cure.startswith("Install nvidia-smi")


@pytest.mark.parametrize("name", ["default", "short", "medium", "long"])
def test_set_time_slice_is_read_back(name):
    smi = NvidiaSmi("Default", "Medium", "Default")
    set_time_slice(GPUS[1].uuid, name, smi)
    assert [s.lower() for s in smi.slices] == ["default", name, "default"]


def test_success_without_change_is_a_failure():
    with pytest.raises(
        NvmlError, match=r"time slice long was set, but nvidia-smi shows default\. Its message was: Successfully"
    ):
        set_time_slice(GPUS[0].uuid, "long", NvidiaSmi("Default", "Default", "Default", keeps=False))


def test_gpu_without_time_slices_has_a_reason():
    with pytest.raises(NvmlError, match=r"does not show it .*Not Supported.*Failed to set timeslice"):
        set_time_slice(GPUS[0].uuid, "long", NvidiaSmi(None, "Default", "Default"))


# ---------------------------------------------------------------------- in a plan


def plan(layout, *slices):
    gpus = [sliced(gpu, name) for gpu, name in zip(GPUS, slices)]
    return planner.plan(gpus, targets(parse_layout(layout), gpus))


def slicing(name, gpus="all"):
    return {"gpus": gpus, "sharing": "time_slicing", "time_slicing": {"slice": name}}


def test_a_plan_sets_what_differs():
    made = plan([slicing("long")], "long", "default", None)
    assert [[str(step) for step in gpu.steps] for gpu in made.gpus] == [[], *[["set time slice long"]] * 2]
    assert made.gpus[1].before() == "MIG off, compute mode default"
    assert made.gpus[1].after() == "MIG off, compute mode default, time slice long"


def test_other_sharing_restores_the_slice_and_mig_does_so_first():
    made = plan(
        [{"gpus": [0], "sharing": "exclusive"}, {"gpus": [2], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]}],
        "short",
        "long",
        "unknown",
    )
    assert [str(step) for step in made.gpus[0].steps] == [
        "set compute mode exclusive_process",
        "set time slice default",
    ]
    assert [str(step) for step in made.gpus[1].steps][:2] == ["set time slice default", "enable MIG mode"]


def test_the_compute_mode_is_the_first_part_of_every_gpu():
    gpu = sliced(GPUS[2], "long", compute_mode="exclusive_process")
    layout = [{"gpus": [2], "sharing": "mig", "mig": [{"profile": "3g.40gb"}]}]
    made = planner.plan([gpu], targets(parse_layout(layout), [gpu])).gpus[0]
    assert [str(step) for step in made.steps][:3] == [
        "set compute mode default",
        "set time slice default",
        "enable MIG mode",
    ]
    assert [step.technique for part in made.parts for step in part.steps] == ["gpu", "time_slicing"]
    assert (made.parts[0].before, made.parts[0].after) == ("compute mode exclusive_process", "")


def test_unread_slice_counts_as_the_default():
    assert not plan([{"gpus": "all", "sharing": "shared"}], None, None, None).changes


def test_gpu_without_slices_is_refused_before_any_change():
    gpus = [sliced(GPUS[0], None, "Not Supported")]
    layout = [slicing("medium", [0])]
    with pytest.raises(PlanError, match=r"gpu_layout\[0\] on gpu 0 .*cannot be set: Not Supported"):
        planner.plan(gpus, targets(parse_layout(layout), gpus))
    assert not planner.plan(gpus, targets(parse_layout([slicing("default", [0])]), gpus)).changes


def test_rollback_restores_the_slice():
    gpu = sliced(GPUS[0], "long", compute_mode="exclusive_process")
    changed = sliced(GPUS[0], "short")
    back = planner.plan([changed], [planner.target_of(gpu)])
    assert [str(step) for step in back.gpus[0].steps] == ["set compute mode exclusive_process", "set time slice long"]


def test_record_notes_set_time_slices(tmp_path):
    record = Record(str(tmp_path))
    assert not record.any()
    record.write([])
    assert not record.path.exists()
    record.write(["GPU-b", "GPU-a"])
    assert record.any()
    record.write([])
    assert not record.any()
