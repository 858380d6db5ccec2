# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Xid errors, which NVML tells only those who wait for them."""

from __future__ import annotations

import threading
import time
from collections import Counter, deque
from typing import Any, Deque, Dict, Optional, Set, Tuple

import pynvml as nvml

from .gpus import GONE, Entity, Gpus, NvmlGoneError, ask

#: Seconds that an error counts as recent.
RECENT = 300.0
#: NVML's word for "no instance in particular".
NO_INSTANCE = 0xFFFFFFFF
_WAIT_MS = 1000
#: Seconds between two looks for GPUs that came.
_LOOK_AGAIN = 5

Key = Tuple[Entity, int]


class XidErrors(threading.Thread):
    """Counts them from its start. Each GPU has an event set of its own, so that one that is lost takes no event of others."""

    def __init__(self, gpus: Gpus, clock=time.monotonic) -> None:
        super().__init__(name="xid-errors", daemon=True)
        self.gpus, self.clock = gpus, clock
        self.lock = threading.Lock()
        self.totals: Dict[Key, int] = Counter()
        self.recent: Deque[Tuple[float, Key]] = deque()
        self.gone: Optional[str] = None
        #: Set when all GPUs that were there at the start are waited for.
        self.ready = threading.Event()
        self._waiting: Set[str] = set()

    def counts(self) -> Tuple[Dict[Key, int], Dict[Key, int]]:
        """Since the start, and of the last five minutes."""
        with self.lock:
            while self.recent and self.recent[0][0] < self.clock() - RECENT:
                self.recent.popleft()
            return dict(self.totals), Counter(key for _, key in self.recent)

    def run(self) -> None:
        while self.gone is None:
            try:
                self._wait_for_all()
            except NvmlGoneError as error:
                self.gone = str(error)
            except nvml.NVMLError as error:
                print("GPUs could not be listed for their Xid errors: %s" % error, flush=True)
            self.ready.set()
            time.sleep(_LOOK_AGAIN)

    def _wait_for_all(self) -> None:
        """Also for a GPU that came back."""
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
                print("Xid errors of %s cannot be waited for: %s" % (uuid, error), flush=True)
                continue
            self._waiting.add(uuid)
            print("waiting for Xid errors of %s" % uuid, flush=True)
            threading.Thread(target=self._wait, args=(uuid, gpu.entity, events), daemon=True).start()

    def _wait(self, uuid: str, entity: Entity, events: Any) -> None:
        """Until the GPU is lost."""
        try:
            while self.gone is None:
                try:
                    data = nvml.nvmlEventSetWait_v2(events, _WAIT_MS)
                except nvml.NVMLError as error:
                    if error.value == nvml.NVML_ERROR_TIMEOUT:
                        continue
                    print("no more Xid errors of %s: %s" % (uuid, error), flush=True)
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
        """The MIG device that the error is of, else the GPU."""
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
