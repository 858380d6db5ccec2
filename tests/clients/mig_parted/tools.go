// Copyright: (c) openfleet.gpu contributors
// SPDX-License-Identifier: GPL-3.0-or-later

//go:build tools

// Package tools pins NVIDIA's mig-parted as a client of the simulated NVML: go.mod and go.sum have its versions.
package tools

import _ "github.com/NVIDIA/mig-parted/cmd/nvidia-mig-parted"
