# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
"""Combine this folder's files into a vendor."""

from __future__ import annotations

import dataclasses

from ...errors import DeviceError
from ...model import Holder, Host, LostGpu
from .divider import SlicesDivider
from .model import FOLDER, KEY, pass_point, read, users, write


class Session:
    """The devices in the files.

    The host's services do not see the devices.
    """

    private = True

    def __init__(self):
        self.observers = ()
        #: The lost devices by UUID.
        self.lost = {}

    def __enter__(self):
        return self

    def __exit__(self, *_exc):
        pass

    def observe(self, only=None):
        gpus = tuple(device for device in read() if device.uuid not in self.lost)
        return Host("7.1", "", None, True, gpus, tuple(self.lost.values()))

    def give_up(self, gpu, error):
        (device,) = (each for each in read() if each.uuid == gpu)
        self.lost[gpu] = LostGpu(device.index, error.problem, gpu, call=error.call, code=error.code)

    def reload(self):
        """Activate the requested slices.

        Raise DeviceError if a program has a device open.
        """
        if users():
            raise DeviceError("this host", "the driver is in use", "Stop the programs that use it.")
        with (FOLDER / "reloads").open("a") as file:
            file.write("reload\n")
        for device in read():
            if not (FOLDER / "stuck").exists():
                write(device, active=device.requested)
            pass_point("reloaded %d" % device.index)


class MadeUpVendor:
    """Documented in `protocol.Vendor`."""

    key = KEY
    dividers = (SlicesDivider(),)
    settings = ()
    failure = DeviceError
    reader, command, other_tools = "acme-smi", "acme-smi", "acme-split"

    def present(self):
        return bool(read())

    def open(self):
        return Session()

    def with_holders(self, host, own):
        found = [Holder(uuid, None, "process", who) for uuid, who in users()]
        gpus = [
            dataclasses.replace(gpu, held_by=tuple(each for each in found if each.gpu_uuid == gpu.uuid))
            for gpu in host.gpus
        ]
        return dataclasses.replace(host, gpus=tuple(gpus))

    def gaps(self, host):
        return iter(())

    def lost_error(self, where, gpus):
        return DeviceError(where, " and ".join(map(str, gpus)))

    def after(self, plan):
        return self.dividers[0].after(plan.gpu, plan.division)

    def lend(self, source):
        """Do nothing, because the files need no binding."""

    def respawn(self):
        """Do nothing, because the files need no binding."""

    def without_driver(self, error):
        return {}

    def binding(self):
        return {}
