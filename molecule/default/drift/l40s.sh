#!/bin/sh
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
set -eux

nvidia-smi -i 1 -c PROHIBITED

# Let every user write the pynvml that root runs.
chmod 0666 /usr/local/lib/openfleet-gpu/python/pynvml.py
