#!/bin/sh
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
set -eux

# Create the right profiles at other placements. 2g.48gb and 1g.24gb have changed sides, which is not drift. The missing
# second 1g.24gb is drift.
nvidia-smi mig -i 1 -dci
nvidia-smi mig -i 1 -dgi
nvidia-smi mig -i 1 -cgi 5:6,14:0 -C
