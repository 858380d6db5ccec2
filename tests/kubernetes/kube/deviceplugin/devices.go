// Copyright: (c) openfleet.gpu contributors
// SPDX-License-Identifier: GPL-3.0-or-later

package deviceplugin

import (
	"fmt"
	"os"
	"os/exec"
	"regexp"
	"strings"

	"sigs.k8s.io/yaml"
)

const gpuResource = "nvidia.com/gpu"

// Config is as much of NVIDIA's configuration file as docs/kubernetes.md speaks of.
type Config struct {
	Version string `json:"version"`
	Flags   struct {
		MigStrategy string `json:"migStrategy"`
	} `json:"flags"`
	Sharing struct {
		TimeSlicing shared `json:"timeSlicing"`
		MPS         shared `json:"mps"`
	} `json:"sharing"`
}

type shared struct {
	FailRequestsGreaterThanOne bool `json:"failRequestsGreaterThanOne"`
	Resources                  []struct {
		Name     string `json:"name"`
		Replicas int    `json:"replicas"`
	} `json:"resources"`
}

func readConfig(path string) (*Config, error) {
	text, err := os.ReadFile(path)
	if err != nil {
		return nil, err
	}
	config := &Config{}
	if err := yaml.Unmarshal(text, config); err != nil {
		return nil, err
	}
	if config.Version != "v1" {
		return nil, fmt.Errorf("%s: version %q is not v1", path, config.Version)
	}
	return config, nil
}

type migDevice struct{ profile, uuid string }

type gpu struct {
	uuid    string
	migMode bool
	devices []migDevice
}

var (
	gpuLine = regexp.MustCompile(`^GPU \d+: .* \(UUID: (GPU-[^)]+)\)$`)
	migLine = regexp.MustCompile(`^  MIG (\S+)\s+Device\s+\d+: \(UUID: (MIG-[^)]+)\)$`)
)

// look asks nvidia-smi, which asks NVML.
func look() ([]gpu, error) {
	modes, err := exec.Command("nvidia-smi", "--query-gpu=uuid,mig.mode.current", "--format=csv,noheader").Output()
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi: %w", err)
	}
	list, err := exec.Command("nvidia-smi", "-L").Output()
	if err != nil {
		return nil, fmt.Errorf("nvidia-smi -L: %w", err)
	}
	var found []gpu
	for _, line := range strings.Split(string(list), "\n") {
		if match := gpuLine.FindStringSubmatch(line); match != nil {
			found = append(found, gpu{uuid: match[1], migMode: strings.Contains(string(modes), match[1]+", Enabled")})
		} else if match := migLine.FindStringSubmatch(line); match != nil && len(found) > 0 {
			last := &found[len(found)-1]
			last.devices = append(last.devices, migDevice{match[1], match[2]})
		} else if strings.TrimSpace(line) != "" {
			return nil, fmt.Errorf("nvidia-smi -L: cannot read %q", line)
		}
	}
	return found, nil
}

// resources returns the identifiers of the devices of each resource. It refuses what docs/kubernetes.md says NVIDIA's plugin refuses.
func resources(config *Config, gpus []gpu) (map[string][]string, error) {
	strategy := config.Flags.MigStrategy
	found := map[string][]string{}
	profiles := map[string]bool{}
	whole := 0
	for _, each := range gpus {
		if !each.migMode || strategy == "none" || strategy == "" {
			whole++
			found[gpuResource] = append(found[gpuResource], each.uuid)
			continue
		}
		if len(each.devices) == 0 {
			return nil, fmt.Errorf("GPU %s is in MIG mode and has no MIG device", each.uuid)
		}
		for _, device := range each.devices {
			profiles[device.profile] = true
			name := gpuResource
			if strategy == "mixed" {
				if strings.Contains(strings.SplitN(device.profile, "g.", 2)[0], "c.") {
					return nil, fmt.Errorf("MIG device %s (%s) matches no resource", device.uuid, device.profile)
				}
				name = "nvidia.com/mig-" + strings.ReplaceAll(device.profile, "+", ".")
			}
			found[name] = append(found[name], device.uuid)
		}
	}
	if strategy == "single" && (len(profiles) > 1 || len(profiles) == 1 && whole > 0) {
		return nil, fmt.Errorf("the MIG strategy single wants MIG devices of one kind on every GPU")
	}
	if len(config.Sharing.MPS.Resources) > 0 && len(profiles) > 0 {
		return nil, fmt.Errorf("MPS is not supported for MIG devices")
	}
	return replicate(config, found)
}

func replicate(config *Config, found map[string][]string) (map[string][]string, error) {
	for _, way := range []shared{config.Sharing.TimeSlicing, config.Sharing.MPS} {
		for _, resource := range way.Resources {
			if resource.Replicas < 2 {
				return nil, fmt.Errorf("%s: replicas must be 2 or more", resource.Name)
			}
			var replicas []string
			for _, id := range found[resource.Name] {
				for number := range resource.Replicas {
					replicas = append(replicas, fmt.Sprintf("%s::%d", id, number))
				}
			}
			if replicas != nil {
				found[resource.Name] = replicas
			}
		}
	}
	return found, nil
}
