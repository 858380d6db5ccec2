// Copyright: (c) openfleet.gpu contributors
// SPDX-License-Identifier: GPL-3.0-or-later

// Package deviceplugin stands in for NVIDIA's device plugin and its config-manager, of which it has no code.
// To the kubelet and to a cluster it looks as docs/kubernetes.md says of NVIDIA's: resources, device identifiers, the variable
// NVIDIA_VISIBLE_DEVICES, a configuration by the node's label, refusals. What it proves of NVIDIA's own program is nothing.
package deviceplugin

import (
	"context"
	"fmt"
	"log"
	"net"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/credentials/insecure"
	meta "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	api "k8s.io/kubelet/pkg/apis/deviceplugin/v1beta1"
)

const configLabel = "nvidia.com/device-plugin.config"

type options struct{ configFile, configFolder, defaultKey, folder, node string }

// NewCommand returns the command of the plugin.
func NewCommand() *cobra.Command {
	given := &options{}
	command := &cobra.Command{
		Use:   "device-plugin",
		Short: "Stand in for NVIDIA's device plugin",
		RunE:  func(*cobra.Command, []string) error { return given.run() },
	}
	command.Flags().StringVar(&given.configFile, "config-file", "", "the configuration")
	command.Flags().StringVar(&given.configFolder, "config-folder", "", "the folder of a ConfigMap; the node's label names the key")
	command.Flags().StringVar(&given.defaultKey, "default-config", "", "the key where the node has no label")
	command.Flags().StringVar(&given.folder, "device-plugin-folder", api.DevicePluginPath, "the kubelet's folder")
	command.Flags().StringVar(&given.node, "node-name", os.Getenv("NODE_NAME"), "the node that has the label")
	return command
}

// run serves until it is ended, and begins again on SIGHUP, on another value of the label, and where the kubelet has started again.
func (given *options) run() error {
	signals := make(chan os.Signal, 1)
	signal.Notify(signals, syscall.SIGHUP, syscall.SIGTERM, syscall.SIGINT)
	for {
		path, err := given.config()
		if err != nil {
			return err
		}
		stop, err := given.serve(path)
		if err != nil {
			return err
		}
		again := given.wait(signals, path)
		stop()
		if !again {
			return nil
		}
	}
}

// wait returns whether to begin again.
func (given *options) wait(signals <-chan os.Signal, path string) bool {
	for {
		select {
		case received := <-signals:
			return received == syscall.SIGHUP
		case <-time.After(time.Second):
			if now, err := given.config(); err == nil && now != path {
				return true
			}
			// The kubelet removes all sockets when it starts.
			if sockets, _ := filepath.Glob(filepath.Join(given.folder, "openfleet-*.sock")); len(sockets) == 0 {
				return true
			}
		}
	}
}

// config returns the path of the configuration. Keys of a volume are asked by their path, as NVIDIA's config-manager does.
func (given *options) config() (string, error) {
	if given.configFolder == "" {
		return given.configFile, nil
	}
	settings, err := rest.InClusterConfig()
	if err != nil {
		return "", err
	}
	client, err := kubernetes.NewForConfig(settings)
	if err != nil {
		return "", err
	}
	limit, cancel := context.WithTimeout(context.Background(), 10*time.Second)
	defer cancel()
	node, err := client.CoreV1().Nodes().Get(limit, given.node, meta.GetOptions{})
	if err != nil {
		return "", err
	}
	key := node.Labels[configLabel]
	if key == "" {
		key = given.defaultKey
	}
	path := filepath.Join(given.configFolder, key)
	if _, err := os.Stat(path); err != nil {
		return "", fmt.Errorf("the configuration %q of the node's label: %w", key, err)
	}
	return path, nil
}

// serve registers each resource. A node without a device is one without a resource, not an error.
func (given *options) serve(path string) (stop func(), err error) {
	config, err := readConfig(path)
	if err != nil {
		return nil, err
	}
	gpus, err := look()
	if err != nil {
		return nil, err
	}
	found, err := resources(config, gpus)
	if err != nil {
		return nil, err
	}
	var servers []*grpc.Server
	stop = func() {
		for _, server := range servers {
			server.Stop()
		}
	}
	for name, ids := range found {
		server := &server{name: name, ids: ids, ended: make(chan struct{})}
		for _, way := range []shared{config.Sharing.TimeSlicing, config.Sharing.MPS} {
			for _, resource := range way.Resources {
				server.one = server.one || way.FailRequestsGreaterThanOne && resource.Name == name
			}
		}
		listening, err := server.serve(given.folder)
		if err != nil {
			stop()
			return nil, err
		}
		servers = append(servers, listening)
	}
	log.Printf("%s: registered %d resources", path, len(found))
	return stop, nil
}

// server offers the devices of one resource.
type server struct {
	api.UnimplementedDevicePluginServer
	name  string
	ids   []string
	one   bool
	ended chan struct{}
}

func (s *server) serve(folder string) (*grpc.Server, error) {
	endpoint := "openfleet-" + strings.ReplaceAll(strings.TrimPrefix(s.name, "nvidia.com/"), "/", "-") + ".sock"
	path := filepath.Join(folder, endpoint)
	if err := os.Remove(path); err != nil && !os.IsNotExist(err) {
		return nil, err
	}
	listener, err := net.Listen("unix", path)
	if err != nil {
		return nil, err
	}
	listening := grpc.NewServer()
	api.RegisterDevicePluginServer(listening, s)
	go func() { _ = listening.Serve(listener) }()
	connection, err := grpc.NewClient("unix://"+filepath.Join(folder, "kubelet.sock"), grpc.WithTransportCredentials(insecure.NewCredentials()))
	if err != nil {
		listening.Stop()
		return nil, err
	}
	defer connection.Close()
	limit, cancel := context.WithTimeout(context.Background(), 60*time.Second)
	defer cancel()
	request := &api.RegisterRequest{Version: api.Version, Endpoint: endpoint, ResourceName: s.name, Options: &api.DevicePluginOptions{}}
	if _, err := api.NewRegistrationClient(connection).Register(limit, request, grpc.WaitForReady(true)); err != nil {
		listening.Stop()
		return nil, fmt.Errorf("the kubelet refuses %s: %w", s.name, err)
	}
	return listening, nil
}

func (s *server) GetDevicePluginOptions(context.Context, *api.Empty) (*api.DevicePluginOptions, error) {
	return &api.DevicePluginOptions{}, nil
}

func (s *server) ListAndWatch(_ *api.Empty, stream grpc.ServerStreamingServer[api.ListAndWatchResponse]) error {
	var devices []*api.Device
	for _, id := range s.ids {
		devices = append(devices, &api.Device{ID: id, Health: api.Healthy})
	}
	if err := stream.Send(&api.ListAndWatchResponse{Devices: devices}); err != nil {
		return err
	}
	<-stream.Context().Done()
	return nil
}

func (s *server) Allocate(_ context.Context, asked *api.AllocateRequest) (*api.AllocateResponse, error) {
	answer := &api.AllocateResponse{}
	for _, container := range asked.ContainerRequests {
		if s.one && len(container.DevicesIds) > 1 {
			return nil, fmt.Errorf("request of %d of %s, which is shared: a pod may have one", len(container.DevicesIds), s.name)
		}
		var uuids []string
		for _, id := range container.DevicesIds {
			if uuid, _, _ := strings.Cut(id, "::"); !slices.Contains(uuids, uuid) {
				uuids = append(uuids, uuid)
			}
		}
		envs := map[string]string{"NVIDIA_VISIBLE_DEVICES": strings.Join(uuids, ",")}
		answer.ContainerResponses = append(answer.ContainerResponses, &api.ContainerAllocateResponse{Envs: envs})
	}
	return answer, nil
}
