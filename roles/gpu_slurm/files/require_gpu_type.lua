-- Copyright: (c) openfleet.gpu contributors
-- SPDX-License-Identifier: GPL-3.0-or-later
--
-- A rule for job_submit.lua: every request for gres/gpu names a type, and no request names a pad. Without this rule, Slurm
-- gives pads to requests without a type (gpu_slurm/README.md, "Change MIG on a busy Slurm node").
--
-- In job_submit.lua, call it first in both functions:
--
--   local gpu_type = dofile("/etc/slurm/require_gpu_type.lua")
--
--   function slurm_job_submit(job_desc, part_list, submit_uid)
--      if gpu_type.refused(job_desc) then return slurm.ERROR end
--      return slurm.SUCCESS
--   end
--
--   function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
--      if gpu_type.refused(job_desc) then return slurm.ERROR end
--      return slurm.SUCCESS
--   end

-- All options of sbatch, salloc and srun that request GPUs end in one of these fields.
local FIELDS = {"tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task"}

-- Return the type in a request such as "gres:gpu:h100:2" (Slurm 22.05) or "gres/gpu:h100=2" (24.11).
-- It is empty without a type, and nil if the request is not for gres/gpu.
local function type_of(request)
   local name, rest = string.match(string.lower(request), "^%s*gres[:/]([^:=]+)(.*)$")
   if name ~= "gpu" then return nil end
   local kind = string.match(rest, "^[:=]([^:=]*)") or ""
   if string.match(kind, "^%d+[kmgtp]?%s*$") then return "" end
   return kind
end

local function refused(job_desc)
   for _, field in ipairs(FIELDS) do
      for request in string.gmatch(job_desc[field] or "", "[^,]+") do
         local kind = type_of(request)
         if kind ~= nil and (kind == "" or string.match(kind, "^pad%d*$")) then
            slurm.log_user("Request GPUs with a type, for example --gres=gpu:h100:1. Requests for pads are refused too.")
            return true
         end
      end
   end
   return false
end

return {refused = refused}
