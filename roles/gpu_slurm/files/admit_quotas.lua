-- Copyright: (c) openfleet.gpu contributors
-- SPDX-License-Identifier: GPL-3.0-or-later
--
-- A rule for job_submit.lua: a request for gres/quota always fits on one GPU of a node, so its lease is never refused for
-- its size (gpu_slurm/README.md, "Lease quotas to jobs").
--
-- In job_submit.lua, call it first in both functions, with the number of units that one job may have:
--
--   local quotas = dofile("/etc/slurm/admit_quotas.lua")
--
--   function slurm_job_submit(job_desc, part_list, submit_uid)
--      if quotas.refused(job_desc, 5) then return slurm.ERROR end
--      return slurm.SUCCESS
--   end
--
--   function slurm_job_modify(job_desc, job_rec, part_list, modify_uid)
--      if quotas.refused(job_desc, 5) then return slurm.ERROR end
--      return slurm.SUCCESS
--   end

-- A request for each task or socket, or for the whole job, can give one node more units than one GPU has.
local NOT_PER_NODE = {"tres_per_job", "tres_per_socket", "tres_per_task"}
local ALL = {"tres_per_node", "tres_per_job", "tres_per_socket", "tres_per_task"}

-- Return the units in a request such as "gres:quota:2" (Slurm 22.05) or "gres/quota=2" (24.11). It is nil if the request is
-- not for gres/quota, and 0 if its number cannot be read.
local function units_of(request)
   local name, rest = string.match(string.lower(request), "^%s*gres[:/]([^:=]+)(.*)$")
   if name ~= "quota" then return nil end
   if rest == "" then return 1 end
   return tonumber(string.match(rest, "^[:=](%d+)%s*$") or "0")
end

local function refused(job_desc, most)
   local has_quota, has_gpus = false, false
   for _, field in ipairs(ALL) do
      for request in string.gmatch(job_desc[field] or "", "[^,]+") do
         local units = units_of(request)
         has_quota = has_quota or units ~= nil
         has_gpus = has_gpus or string.match(string.lower(request), "^%s*gres[:/]gpu") ~= nil
         if units ~= nil and (units < 1 or units > most) then
            slurm.log_user("Request from 1 to %d units, for example --gres=quota:%d.", most, most)
            return true
         end
      end
   end
   for _, field in ipairs(NOT_PER_NODE) do
      for request in string.gmatch(job_desc[field] or "", "[^,]+") do
         if units_of(request) ~= nil then
            slurm.log_user("Request gres/quota for each node, for example --gres=quota:1.")
            return true
         end
      end
   end
   if has_quota and has_gpus then
      slurm.log_user("Request gres/quota or gres/gpu. A program has one quota.")
      return true
   end
   return false
end

return {refused = refused}
