/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The host agent's report for a tenant, /run/openfleet-gpu/vgpu/agent/NAME/nvml.1. For each process of the tenant, the
 * report contains the memory that NVML shows beyond the process's own accounting. Only root can write the file.
 * Containers mount its folder read-only.
 *
 * The file is updated in place once a second. If a reader sees that the sequence number is odd or has changed, it reads
 * again.
 */
#ifndef NVML_REPORT_H
#define NVML_REPORT_H

#include "formats/region.h"

#define NVML_REPORT_MAGIC UINT64_C(0x4e55504756464f00)	/* "\0OFVGPUN" */

enum { NVML_REPORT_NO_SLOT = 0xffffffff };

struct nvml_report_row {
	uint32_t slot, nonce;			/* the process's slot in the region */
	uint64_t beyond[REGION_GPUS];		/* bytes, UINT64_MAX if NVML does not list the process */
	uint64_t steady[REGION_GPUS];		/* minimum of this and the previous value, 0 unless reported twice */
};

/* Columns have the order of `uuid`. */
struct nvml_report {
	uint64_t magic;
	uint64_t sequence;
	int64_t written_ns;			/* CLOCK_MONOTONIC */
	int64_t asked_ns;			/* CLOCK_MONOTONIC before the NVML query */
	uint32_t gpus, rows;
	uint32_t others_slot, others_nonce;	/* a slot that the agent holds, or NVML_REPORT_NO_SLOT */
	unsigned char uuid[REGION_GPUS][16];
	uint64_t others[REGION_GPUS];		/* bytes of the tenant's processes without a slot, if reported twice */
	struct nvml_report_row row[REGION_SLOTS];
};
static_assert(sizeof(struct nvml_report_row) == 264, "layout 1");
static_assert(offsetof(struct nvml_report, row) == 432, "layout 1");

#endif
