/*
 * SPDX-License-Identifier: Apache-2.0
 * Copyright: (c) openfleet.gpu contributors
 *
 * The private door of nvidia-smi.
 */
#include <string.h>

#include "call.h"

/*
 * nvidia-smi does not start without this table. Its first word is its size in bytes; at a size of 8
 * there is no entry, and nvidia-smi 450 to 550 then use public functions only (tried with each).
 */
nvmlReturn_t nvmlInternalGetExportTable(const void **table, const unsigned char *guid)
{
	static const unsigned char known[16] = {
		0xc4, 0xfe, 0x3e, 0x6c, 0xc9, 0x8f, 0x6c, 0x4e, 0xa3, 0x27, 0xee, 0x69, 0x6e, 0x12, 0xf7, 0xc4
	};
	static const uint64_t empty[1] = { sizeof empty };
	call_t call __attribute__((cleanup(call_leave))) = call_enter_uninitialized(F_nvmlInternalGetExportTable);
	if (call.result != NVML_SUCCESS)
		return call.result;
	if (!table || !guid)
		return NVML_ERROR_INVALID_ARGUMENT;
	if (memcmp(guid, known, sizeof known) != 0)
		return NVML_ERROR_NOT_FOUND;
	*table = empty;
	return NVML_SUCCESS;
}
