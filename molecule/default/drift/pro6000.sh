#!/bin/sh
# Copyright: (c) openfleet.gpu contributors
# SPDX-License-Identifier: GPL-3.0-or-later
set -eux

# The right profiles at the wrong place: 2g.48gb and the two 1g.24gb have changed sides, which is as good as before, and one
# of the small ones is missing, which is not.
nvidia-smi mig -i 1 -dci
nvidia-smi mig -i 1 -dgi
nvidia-smi mig -i 1 -cgi 5:6,14:0 -C
