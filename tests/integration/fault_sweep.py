# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Let every NVML call in a transition fail or die once, and check each result.

Each run is a fork of this process on a simulated host, so thousands of runs take only minutes. After each run, another
fork reads the state and cleans up. This process does not read the state itself, because its NVML library would remember
the previous run's instances, although the sweep has restored the state file.
"""

from __future__ import annotations

import contextlib
import ctypes
import fcntl
import json
import os
import random
import sys
from pathlib import Path
from typing import Any, Callable, Iterator, NamedTuple

from ansible_collections.openfleet.gpu.plugins.module_utils.change import apply_plan, planner, recovery
from ansible_collections.openfleet.gpu.plugins.module_utils.change.journal import Journal
from ansible_collections.openfleet.gpu.plugins.module_utils.errors import ApplyError, FleetError
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.gpu_plan import Target
from ansible_collections.openfleet.gpu.plugins.module_utils.plan.transaction import locked
from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.mig.divider import (
    MigDivision,
    WantedInstance,
)
from tests.integration.simulated_host import SIMULATOR, SimulatedHost

sys.path.insert(0, str(SIMULATOR))

ACTIONS = ("UNKNOWN", "kill", "kill-inside", "kill-after")
#: Error codes that calls for a failing GPU return.
SICK = (
    "UNKNOWN",
    "GPU_IS_LOST",
    "IRQ_ISSUE",
    "INSUFFICIENT_POWER",
    "RESET_REQUIRED",
    "TIMEOUT",
    "NO_PERMISSION",
    "NOT_FOUND",
)
#: A number of calls that no run reaches.
_NEVER = 1_000_000


class Ending(NamedTuple):
    """One run's result after a fault."""

    call: str
    nth: int
    action: str
    #: The reason why the result is wrong, or `""` if it is correct.
    wrong: str


class Sweep:
    """One simulated host.

    The sweep saves the host's state file once, and restores it between runs.
    """

    def __init__(self, folder: Path, library: Path) -> None:
        import pynvml
        from gpusim.control import Control

        self.host = SimulatedHost(folder, library)
        self.directory = str(folder / "state.d")
        os.environ["GPUSIM_STATE"] = str(folder / "state")
        self.control = Control(str(library / "libnvidia-ml.so.1"))
        pynvml.nvmlLib = ctypes.CDLL(str(library / "libnvidia-ml.so.1"))

    def transition(
        self, model: str, have: list[tuple[str, int]], busy: set[int], want: list[str], most: int | None = None
    ) -> Iterator[Ending]:
        """Sweep the change from `have` to `want` with every fault in every call.

        If `most` has a value, the sweep uses only a sample of that many faults. `busy` contains placement starts. Each
        instance of `have` that starts there has a process until the sweep ends or its generator is closed.
        """
        self.host.create([{"model": model, "count": 2}])
        old = [WantedInstance(name, start) for name, start in have]
        self._fork(lambda: self._apply(old))
        with self._processes(busy) as held:
            snapshot = (self.host.folder / "state").read_bytes()
            before = self._seen()
            new = [WantedInstance(name) for name in want]
            self.control.clear_calls()
            status, said = self._fork(lambda: self._apply(new))
            if status != 0:
                # The run refused the change because it would end a process, so it made no calls that could fail.
                assert self._seen() == before, said
                return
            after = self._seen()
            calls = sorted(self.control.dump()["calls"].items())
            faults = [(call, nth, action) for call, count in calls for nth in range(1, count + 1) for action in ACTIONS]
            if most is not None and most < len(faults):
                faults = random.Random(len(faults)).sample(faults, most)
            for call, nth, action in faults:
                self._restore(snapshot)
                self.control.fail(call, nth, action)
                yield Ending(call, nth, action, self._judge(lambda: self._apply(new), before, after, held))

    def sick_gpu(
        self, model: str, have: list[tuple[str, int]], want: list[str], most: int | None = None
    ) -> Iterator[Ending]:
        """Sweep a change of three GPUs from `have` to `want` in which calls to GPU 1 fail.

        Either all calls to GPU 1 fail from the nth call on, with each code of SICK, or all calls of one function fail
        for GPU 1. If `most` has a value, the sweep uses only a sample of that many faults.
        """
        self.host.create([{"model": model, "count": 3}])
        old = self._layout([{"profile": name, "placement": start} for name, start in have])
        new = self._layout([{"profile": name} for name in want])
        status, said = self._fork(lambda: self._converge(old, "fail"))
        assert status == 0, said
        snapshot, owned = (self.host.folder / "state").read_bytes(), self._owned()
        before = self._seen()["gpus"]
        self.control.clear_calls()
        self.control.fail_on("any", 1, _NEVER, True, "UNKNOWN")
        status, said = self._fork(lambda: self._converge(new, "fail"))
        (counter,) = self.control.dump()["faults"]
        calls = sorted(call for call in self.control.dump()["calls"] if not call.startswith(("nvmlInit", "nvmlSystem")))
        self.control.clear_failures()
        if status != 0:
            return
        after = self._seen()["gpus"]
        faults = [("any", nth, code) for nth in range(1, _NEVER - counter["nth"] + 1) for code in SICK]
        faults += [(call, 1, code) for call in calls for code in SICK]
        if most is not None and most < len(faults):
            faults = random.Random(len(faults)).sample(faults, most)
        for number, (call, nth, code) in enumerate(faults):
            self._restore(snapshot, owned)
            self.control.fail_on(call, 1, nth, True, code)
            lost = ("fail", "skip")[number % 2]
            yield Ending(call, nth, "%s %s" % (code, lost), self._judge_sick(new, lost, before, after))

    def _judge_sick(self, new: Any, lost: str, before: Any, after: Any) -> str:
        status, said = self._fork(lambda: self._converge(new, lost))
        self.control.clear_failures()
        seen = self._fork(_read)[1]["gpus"]
        expected = {0: [after], 1: [before]}.get(status, [])
        if [seen[0], seen[2]] not in [[each[0], each[2]] for each in expected]:
            return "status %d, and the healthy GPUs have %s: %s" % (status, [seen[0], seen[2]], said)
        if status == 1 and "gpu 1" not in said:
            return "the failure does not name the GPU: %s" % said
        if status == 1 and lost == "skip" and ("GPU_IS_LOST" in said or "does not work" in said):
            return "a GPU that may be left out failed the run: %s" % said
        if status == 0 and seen[1] != after[1] and not any("gpu 1" in text for text in said):
            return "nothing says that gpu 1 was left out"
        status, said = self._fork(lambda: self._converge(new, "fail"))
        if status != 0 or self._fork(_read)[1]["gpus"] != after:
            return "the run after the repair did not reach the new layout: %s" % said
        if (Path(self.directory) / "journal.json").exists():
            return "a journal is left after the repair"
        return ""

    def _layout(self, instances: list[dict[str, Any]]) -> Any:
        return [{"gpus": "all", "sharing": "mig", "mig": instances}]

    def _converge(self, layout: Any, lost: str) -> list[str]:
        from ansible_collections.openfleet.gpu.plugins.module_utils.change.converge import Request, converge
        from ansible_collections.openfleet.gpu.plugins.module_utils.techniques.forms import parse_layout

        return list(converge(Request(parse_layout(layout), self.directory, "fail", lost=lost), 0).warnings)

    def _owned(self) -> str:
        return (Path(self.directory) / "owned.json").read_text()

    def _judge(self, run: Callable[[], Any], before: Any, after: Any, held: set[tuple[int, int]]) -> str:
        status, said = self._fork(run)
        # If the run did not reach the call with the fault, the fault is still pending. It would then hit the processes
        # that read the state.
        self.control.clear_failures()
        left = (Path(self.directory) / "journal.json").exists()
        if not self._lock_is_free():
            return "the lock is still held"
        found = self._fork(self._look_and_clear_up)
        assert found[0] == 0, found[1]
        first, (cleared, told), seen = found[1]
        if status == 0 and first != after:
            return "success was reported, and the new layout is not there"
        if status == 1 and first != before:
            return "the old layout was reported, and it is not there: %s" % said
        if status == 1 and left:
            return "a journal is left beside a whole layout"
        if cleared != 0:
            return "the next run could not clear up: %s" % told
        if seen not in (before, after):
            return "neither old nor new: %s" % seen
        if not held <= {tuple(place) for place in seen["processes"]}:
            return "a process lost its instance"
        return ""

    def _restore(self, snapshot: bytes, owned: str | None = None) -> None:
        # Write in place, because this process and its forks have mapped the file.
        with (self.host.folder / "state").open("r+b") as file:
            file.write(snapshot)
        Journal(self.directory).end()
        if owned is not None:
            (Path(self.directory) / "owned.json").write_text(owned)

    @contextlib.contextmanager
    def _processes(self, busy: set[int]) -> Iterator[set[tuple[int, int]]]:
        """Attach this process to the instances of GPU 0 whose start is in `busy`.

        Yield (GPU, placement start) for each instance. At the end, the process detaches, because the simulator refuses
        to create GPUs while a process is attached.
        """
        instances = [(start, identity) for start, identity in self._seen()["ids"] if start in busy]
        try:
            for _, identity in instances:
                self.control.attach(os.getpid(), 0, identity, 0, "compute", 1 << 20)
            yield {(0, start) for start, _ in instances}
        finally:
            # If the result was wrong, the run may have destroyed the instances.
            if os.getpid() in [process["pid"] for process in self.control.dump()["processes"]]:
                self.control.detach(os.getpid())

    # ------------------------------------------------------------------ functions that run in a fork

    def _apply(self, wanted: list[WantedInstance]) -> None:
        """Apply these instances to GPU 0.

        If the instances have no pinned placements, GPU 1 changes its compute mode in the same run.
        """
        from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.session import Session

        with locked(self.directory, 0), Session() as session:
            context = apply_plan.Context(session, Journal(self.directory))
            recovery.recover(context)
            gpus = session.observe().gpus
            targets = [Target(gpus[0].uuid, "gpu_layout[0]", "mig", MigDivision(tuple(wanted)))]
            if any(instance.start is None for instance in wanted):
                targets.append(
                    Target(gpus[1].uuid, "gpu_layout[1]", "exclusive", None, {"compute_mode": "exclusive_process"})
                )
            apply_plan.apply(
                context, planner.plan(gpus, targets[: 1 if all(w.start is not None for w in wanted) else 2])
            )

    def _recover(self) -> None:
        from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.session import Session

        with locked(self.directory, 0), Session() as session:
            recovery.recover(apply_plan.Context(session, Journal(self.directory)))

    def _look_and_clear_up(self) -> tuple[Any, tuple[int, Any], Any]:
        """Return the NVML state, the result of the next run, and the NVML state after it.

        The next run recovers an interrupted run. If a step fails, return its error text in place of its result.
        """
        return _tried(_read)[1], _tried(self._recover), _tried(_read)[1]

    def _seen(self) -> Any:
        """Return the state that NVML reports.

        The state is: each GPU's MIG mode and instances, the processes as (GPU, placement start), and the instance ids
        on GPU 0.
        """
        status, said = self._fork(_read)
        assert status == 0, said
        return said

    def _fork(self, run: Callable[[], Any]) -> tuple[int, Any]:
        """Call `_tried` in a fork, and return its result, or (-9, "") after a kill."""
        reader, writer = os.pipe()
        child = os.fork()
        if child == 0:
            status, said = _tried(run)
            os.write(writer, json.dumps(said).encode())
            os._exit(status)
        os.close(writer)
        with os.fdopen(reader) as stream:
            text = stream.read()
        status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        return status, json.loads(text) if text else ""

    def _lock_is_free(self) -> bool:
        with (Path(self.directory) / "lock").open("a") as file:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except OSError:
                return False
            return True


def _tried(run: Callable[[], Any]) -> tuple[int, Any]:
    """Call `run` and return (0, result) or an error.

    The error is (1, message) if the message says "nothing changed" or "old", and (2, message) otherwise.
    """
    try:
        return 0, run()
    except ApplyError as error:
        return (1 if error.outcome == "old" else 2), str(error)
    except FleetError as error:
        return 1, str(error)
    except BaseException as error:  # pylint: disable=broad-except
        return 2, repr(error)


def _read() -> Any:
    from ansible_collections.openfleet.gpu.plugins.module_utils.vendors.nvidia.nvml.session import Session

    with Session() as session:
        gpus = session.observe().gpus
    return {
        "gpus": [
            [
                gpu.mig.enabled,
                gpu.mig.pending,
                gpu.compute_mode,
                [
                    [i.profile, i.placement.start, [c.compute_slices for c in i.compute_instances]]
                    for i in gpu.mig.instances
                ],
            ]
            for gpu in gpus
        ],
        "processes": [[g.index, i.placement.start] for g in gpus for i in g.mig.instances if i.processes],
        "ids": [[i.placement.start, i.id] for i in gpus[0].mig.instances],
    }


def random_transitions(seed: int, count: int) -> Iterator[tuple[str, list[tuple[str, int]], set[int], list[str]]]:
    """Yield (model, have, busy, want) for random transitions that change something."""
    from ansible_collections.openfleet.gpu.plugins.module_utils.catalogue import load_models
    from ansible_collections.openfleet.gpu.plugins.module_utils.plan.assumed import assumed_gpus
    from tests.unit.mig_rules import legal

    models = load_models()
    rng = random.Random(seed)
    keys = sorted(key for key, model in models.items() if model.mig_capable)
    for _ in range(count):
        key = rng.choice(keys)
        gpu = assumed_gpus([key], models)[0]
        pairs = [(p.name, placement) for p in gpu.mig.profiles for placement in p.placements]
        chosen: list[list[Any]] = [[], []]
        for some in chosen:
            for pair in rng.sample(pairs, rng.randint(1, min(5, len(pairs)))):
                if legal(gpu, [*some, pair]):
                    some.append(pair)
        have, want = ([(name, placement.start) for name, placement in some] for some in chosen)
        wanted = [name for name, _ in want]
        # Attach a process only if the new layout can keep its instance. Otherwise the module would refuse the run.
        busy = {start for name, start in have[:1] if name in wanted}
        yield key, have, busy, wanted
