# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Xid errors, which NVML tells only those who wait for them."""

from __future__ import annotations

import ctypes
import threading
import time
from collections import Counter, deque
from typing import Any, Deque, Dict, List, Optional, Tuple

import pynvml as nvml

from .gpus import Entity, Gpu, Gpus, NvmlGoneError, ask, text

#: Seconds that an error counts as recent.
RECENT = 300.0
#: NVML's word for "no instance in particular".
NO_INSTANCE = 0xFFFFFFFF
_WAIT_MS = 1000

Key = Tuple[Entity, int]


class XidErrors(threading.Thread):
    """Counts them from its start. One event set for all GPUs, made anew when a GPU came back, and after an error."""

    def __init__(self, gpus: Gpus, clock=time.monotonic) -> None:
        super().__init__(name="xid-errors", daemon=True)
        self.gpus, self.clock = gpus, clock
        self.lock = threading.Lock()
        self.totals: Dict[Key, int] = Counter()
        self.recent: Deque[Tuple[float, Key]] = deque()
        self.gone: Optional[str] = None
        self.ready = threading.Event()
        self._there: List[Gpu] = []
        self._by_handle: Dict[Optional[int], str] = {}

    def counts(self) -> Tuple[Dict[Key, int], Dict[Key, int]]:
        """Since the start, and of the last five minutes."""
        with self.lock:
            while self.recent and self.recent[0][0] < self.clock() - RECENT:
                self.recent.popleft()
            return dict(self.totals), Counter(key for _, key in self.recent)

    def run(self) -> None:
        while True:
            try:
                self._watch()
            except NvmlGoneError as error:
                self.gone = str(error)
                return
            except nvml.NVMLError as error:
                print("waiting for Xid errors failed, and is tried again: %s" % error, flush=True)
            time.sleep(1)

    def _watch(self) -> None:
        events = nvml.nvmlEventSetCreate()
        try:
            registered = self._register(events)
            self.ready.set()
            while True:
                self._wait(events)
                self._there = self.gpus.scan()
                if {gpu.entity.uuid for gpu in self._there if not gpu.lost} - registered:
                    return
        finally:
            ask(nvml.nvmlEventSetFree, events)

    def _register(self, events: Any) -> set:
        """UUIDs of the GPUs that were there, whether they have such events or not."""
        self._there = self.gpus.scan()
        seen = set()
        for gpu in self._there:
            if gpu.lost:
                continue
            seen.add(gpu.entity.uuid)
            self._by_handle[address(gpu.handle)] = gpu.entity.uuid
            ask(nvml.nvmlDeviceRegisterEvents, gpu.handle, nvml.nvmlEventTypeXidCriticalError, events)
        return seen

    def _wait(self, events: Any) -> None:
        try:
            data = nvml.nvmlEventSetWait_v2(events, _WAIT_MS)
        except nvml.NVMLError as error:
            if error.value == nvml.NVML_ERROR_TIMEOUT:
                return
            # A lost GPU must not make this a loop without a pause: the caller waits a second and leaves it out.
            raise
        if data.eventType & nvml.nvmlEventTypeXidCriticalError:
            entity = self._entity(data)
            if entity is not None:
                self.add(entity, int(data.eventData))

    def add(self, entity: Entity, xid: int) -> None:
        with self.lock:
            self.totals[(entity, xid)] += 1
            self.recent.append((self.clock(), (entity, xid)))
        print("Xid %d on %s" % (xid, entity.uuid), flush=True)

    def _entity(self, data: Any) -> Optional[Entity]:
        """The MIG device that the error is of, else the GPU, which may be lost by now."""
        uuid = self._by_handle.get(address(data.device)) or text(ask(nvml.nvmlDeviceGetUUID, data.device) or "")
        for gpu in self._there:
            if gpu.entity.uuid != uuid:
                continue
            for mig in gpu.mig_devices:
                if mig.gpu_instance == data.gpuInstanceId and data.computeInstanceId in (
                    mig.compute_instance,
                    NO_INSTANCE,
                ):
                    return mig.entity
            return gpu.entity
        return None


def address(handle: Any) -> Optional[int]:
    return ctypes.cast(handle, ctypes.c_void_p).value
