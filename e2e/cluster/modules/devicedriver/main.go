// Devicedriver is a DRA driver of devices that are not there: it publishes those that a file lists, and gives a
// container that claims one an environment variable in place of it. Everything else is as a vendor's driver does it:
// registration at the kubelet, a ResourceSlice, claims prepared by CDI and unprepared.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"path/filepath"
	"strings"
	"syscall"
	"time"

	resourceapi "k8s.io/api/resource/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/tools/clientcmd"
	"k8s.io/dynamic-resource-allocation/kubeletplugin"
	"k8s.io/dynamic-resource-allocation/resourceslice"
	"k8s.io/klog/v2"
	cdi "tags.cncf.io/container-device-interface/specs-go"
)

const (
	// Prefix of the environment variable that stands for a device; then its name, as in STAND_IN_0.
	variable = "CLAIMED_"
	class    = "device"
	// How often the file of devices is looked at.
	kubeletDirectory = "/var/lib/kubelet"
	look             = 200 * time.Millisecond
)

// Places are what the command line says.
type places struct {
	driver, node, kubeconfig, kubelet, cdi, devices string
}

func main() {
	var at places
	flag.StringVar(&at.driver, "driver", "", "name of the driver, a DNS subdomain")
	flag.StringVar(&at.node, "node", "", "name of its node, and of its pool of devices")
	flag.StringVar(&at.kubeconfig, "kubeconfig", "", "file by which the API server is reached")
	flag.StringVar(&at.kubelet, "kubelet", kubeletDirectory, "root directory of the node's kubelet")
	flag.StringVar(&at.cdi, "cdi", kubeletplugin.DefaultCDIDir, "directory where the container runtime looks for CDI specs")
	flag.StringVar(&at.devices, "devices", "", "JSON file: a list of devices as in a ResourceSlice; read again when it changes")
	flag.Parse()
	ctx, stop := signal.NotifyContext(context.Background(), syscall.SIGTERM, os.Interrupt)
	defer stop()
	if err := run(ctx, at); err != nil {
		fmt.Fprintln(os.Stderr, "error:", err)
		os.Exit(1)
	}
}

// Run registers the driver and publishes its devices until ctx ends.
func run(ctx context.Context, at places) error {
	config, err := clientcmd.BuildConfigFromFlags("", at.kubeconfig)
	if err != nil {
		return err
	}
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		return err
	}
	data := filepath.Join(at.kubelet, "plugins", at.driver)
	for _, folder := range []string{data, at.cdi} {
		if err := os.MkdirAll(folder, 0o755); err != nil {
			return err
		}
	}
	failed := make(chan error, 1)
	helper, err := kubeletplugin.Start(ctx, &driver{places: at, failed: failed},
		kubeletplugin.KubeClient(client),
		kubeletplugin.NodeName(at.node),
		kubeletplugin.DriverName(at.driver),
		kubeletplugin.RegistrarDirectoryPath(filepath.Join(at.kubelet, "plugins_registry")),
		kubeletplugin.PluginDataDirectoryPath(data),
		kubeletplugin.HealthService(false),
	)
	if err != nil {
		return err
	}
	defer helper.Stop()
	return publish(ctx, helper, at, failed)
}

// Publish tells the cluster what the file lists, whenever that changes.
func publish(ctx context.Context, helper *kubeletplugin.Helper, at places, failed <-chan error) error {
	var before []byte
	for {
		text, err := os.ReadFile(at.devices)
		if err != nil {
			return err
		}
		if !bytes.Equal(text, before) {
			var devices []resourceapi.Device
			if err := json.Unmarshal(text, &devices); err != nil {
				return fmt.Errorf("%s: %w", at.devices, err)
			}
			slices := []resourceslice.Slice{{Devices: devices}}
			pools := map[string]resourceslice.Pool{at.node: {Slices: slices}}
			if err := helper.PublishResources(ctx, resourceslice.DriverResources{Pools: pools}); err != nil {
				return err
			}
			before = text
		}
		select {
		case <-ctx.Done():
			return nil
		case err := <-failed:
			return err
		case <-time.After(look):
		}
	}
}

// Driver prepares claims. A claim is prepared while its CDI spec is there: that is all that it remembers.
type driver struct {
	places
	failed chan<- error
}

func (d *driver) PrepareResourceClaims(_ context.Context, claims []*resourceapi.ResourceClaim) (map[types.UID]kubeletplugin.PrepareResult, error) {
	results := map[types.UID]kubeletplugin.PrepareResult{}
	for _, claim := range claims {
		devices, err := d.prepare(claim)
		results[claim.UID] = kubeletplugin.PrepareResult{Devices: devices, Err: err}
	}
	return results, nil
}

func (d *driver) UnprepareResourceClaims(_ context.Context, claims []kubeletplugin.NamespacedObject) (map[types.UID]error, error) {
	results := map[types.UID]error{}
	for _, claim := range claims {
		err := os.Remove(d.spec(claim.UID))
		if errors.Is(err, os.ErrNotExist) {
			err = nil
		}
		results[claim.UID] = err
	}
	return results, nil
}

// HandleError ends the driver for what another try would not mend.
func (d *driver) HandleError(_ context.Context, err error, message string) {
	klog.ErrorS(err, message)
	if !errors.Is(err, kubeletplugin.ErrRecoverable) {
		select {
		case d.failed <- fmt.Errorf("%s: %w", message, err):
		default:
		}
	}
}

func (d *driver) WatchHealthStatus(context.Context, chan<- kubeletplugin.DeviceHealthReport) error {
	return kubeletplugin.ErrHealthNotSupported
}

// Prepare writes the CDI spec of a claim; an error for a device that another claim has.
func (d *driver) prepare(claim *resourceapi.ResourceClaim) ([]kubeletplugin.Device, error) {
	spec := cdi.Spec{Version: "0.6.0", Kind: d.driver + "/" + class}
	var prepared []kubeletplugin.Device
	for _, result := range claim.Status.Allocation.Devices.Results {
		if result.Driver != d.driver {
			continue
		}
		if err := d.isFree(result.Device, claim.UID); err != nil {
			return nil, err
		}
		name := string(claim.UID) + "-" + result.Device
		value := environment(result.Device, claim)
		spec.Devices = append(spec.Devices, cdi.Device{Name: name, ContainerEdits: cdi.ContainerEdits{Env: []string{value}}})
		prepared = append(prepared, kubeletplugin.Device{
			Requests:     []string{result.Request},
			PoolName:     result.Pool,
			DeviceName:   result.Device,
			CDIDeviceIDs: []string{spec.Kind + "=" + name},
		})
	}
	return prepared, d.write(claim.UID, spec)
}

// IsFree is an error where a device is prepared for another claim.
func (d *driver) isFree(device string, own types.UID) error {
	specs, err := filepath.Glob(d.spec("*"))
	if err != nil {
		return err
	}
	for _, path := range specs {
		if path == d.spec(own) {
			continue
		}
		if text, err := os.ReadFile(path); err == nil && bytes.Contains(text, []byte("-"+device+`"`)) {
			return fmt.Errorf("%s is prepared for another claim: %s", device, path)
		}
	}
	return nil
}

// Write makes a spec whole at once: the container runtime may read it meanwhile.
func (d *driver) write(claim types.UID, spec cdi.Spec) error {
	text, err := json.Marshal(spec)
	if err != nil {
		return err
	}
	draft := filepath.Join(d.cdi, "draft")
	if err := os.WriteFile(draft, text, 0o644); err != nil {
		return err
	}
	return os.Rename(draft, d.spec(claim))
}

// Spec is the file of a claim's CDI spec.
func (d *driver) spec(claim types.UID) string {
	return filepath.Join(d.cdi, d.driver+"-"+string(claim)+".json")
}

// Environment is the variable that a container gets for a device: its name, and the claim by which it has it.
func environment(device string, claim *resourceapi.ResourceClaim) string {
	name := strings.ToUpper(strings.ReplaceAll(device, "-", "_"))
	return variable + name + "=" + claim.Name
}
