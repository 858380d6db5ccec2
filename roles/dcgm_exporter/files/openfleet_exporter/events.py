# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Count Xid errors, which NVML reports only as events."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import Any, Deque, Dict, Optional, Set, Tuple

import pynvml as nvml

from .gpus import GONE, Entity, Gpus, NvmlGoneError, ask

#: Seconds for which an error counts as recent.
RECENT = 300.0
#: NVML's ID for an error without an instance.
NO_INSTANCE = 0xFFFFFFFF
_WAIT_MS = 1000
#: Seconds between two scans for new GPUs.
_SCAN_INTERVAL = 5

Key = Tuple[Entity, int]


class XidErrors(threading.Thread):
    """Count Xid errors since the start. A lost GPU does not affect other GPUs.

    Each GPU has its own event set.
    """

    def __init__(self, gpus: Gpus, clock=time.monotonic) -> None:
        super().__init__(name="xid-errors", daemon=True)
        self.gpus, self.clock = gpus, clock
        self.lock = threading.Lock()
        self.totals: Dict[Key, int] = Counter()
        self.recent: Deque[Tuple[float, Key]] = deque()
        self.gone: Optional[str] = None
        #: Set when all initial GPUs' events are registered.
        self.ready = threading.Event()
        self._waiting: Set[str] = set()

    def counts(self) -> Tuple[Dict[Key, int], Dict[Key, int]]:
        """Return error counts since the start, and error counts of the last five minutes."""
        with self.lock:
            while self.recent and self.recent[0][0] < self.clock() - RECENT:
                self.recent.popleft()
            return dict(self.totals), Counter(key for _unused, key in self.recent)

    def run(self) -> None:
        while self.gone is None:
            try:
                self._wait_for_all()
            except NvmlGoneError as error:
                self.gone = str(error)
            except nvml.NVMLError as error:
                print("cannot list GPUs to count Xid errors: %s" % error, flush=True)
            self.ready.set()
            time.sleep(_SCAN_INTERVAL)

    def _wait_for_all(self) -> None:
        """Register the events of all GPUs, also of GPUs that were lost before."""
        for gpu in self.gpus.scan():
            uuid = gpu.entity.uuid
            if gpu.lost or uuid in self._waiting:
                continue
            events = ask(nvml.nvmlEventSetCreate)
            if events is None:
                continue
            try:
                nvml.nvmlDeviceRegisterEvents(gpu.handle, nvml.nvmlEventTypeXidCriticalError, events)
            except nvml.NVMLError as error:
                ask(nvml.nvmlEventSetFree, events)
                if error.value == nvml.NVML_ERROR_NOT_SUPPORTED:
                    self._waiting.add(uuid)
                print("cannot register Xid events of %s: %s" % (uuid, error), flush=True)
                continue
            self._waiting.add(uuid)
            print("waiting for Xid errors of %s" % uuid, flush=True)
            threading.Thread(target=self._wait, args=(uuid, gpu.entity, events), daemon=True).start()

    def _wait(self, uuid: str, entity: Entity, events: Any) -> None:
        """Count the events of a GPU until it is lost."""
        try:
            while self.gone is None:
                try:
                    data = nvml.nvmlEventSetWait_v2(events, _WAIT_MS)
                except nvml.NVMLError as error:
                    if error.value == nvml.NVML_ERROR_TIMEOUT:
                        continue
                    print("stopped waiting for Xid errors of %s: %s" % (uuid, error), flush=True)
                    if error.value in GONE:
                        self.gone = str(error)
                    return
                if data.eventType & nvml.nvmlEventTypeXidCriticalError:
                    self.add(self._part(entity, data), int(data.eventData))
        finally:
            self._waiting.discard(uuid)
            try:
                ask(nvml.nvmlEventSetFree, events)
            except NvmlGoneError as error:
                self.gone = str(error)

    def add(self, entity: Entity, xid: int) -> None:
        with self.lock:
            self.totals[(entity, xid)] += 1
            self.recent.append((self.clock(), (entity, xid)))
        print("Xid %d on %s" % (xid, entity.uuid), flush=True)

    def _part(self, entity: Entity, data: Any) -> Entity:
        """Return the MIG device on which the error occurred, or the GPU."""
        if data.gpuInstanceId == NO_INSTANCE:
            return entity
        try:
            gpus = self.gpus.scan()
        except (NvmlGoneError, nvml.NVMLError):
            return entity
        for mig in (mig for gpu in gpus if gpu.entity.uuid == entity.uuid for mig in gpu.mig_devices):
            compute = (mig.compute_instance, NO_INSTANCE)
            if mig.gpu_instance == data.gpuInstanceId and data.computeInstanceId in compute:
                return mig.entity
        return entity
