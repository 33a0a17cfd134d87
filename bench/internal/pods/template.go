package pods

import (
	"encoding/json"
	"fmt"
	"maps"
	"math/rand/v2"
	"strings"
	"time"

	corev1 "k8s.io/api/core/v1"
	"k8s.io/apimachinery/pkg/api/resource"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// Placeholders of a template for what differs between pods. Each is as wide
// as what takes its place, and occurs nowhere else.
const (
	markSuffix    = "~sfx~"
	markVolume    = "~vol~"
	markUID       = "~uid~-------------------------------"
	markVersion   = "~version~"
	markIP        = "~ip~~~~~~~~~~~"
	markNode      = "~nd"
	markContainer = "~container~-----------------------------------------------------"
)

// The times of a pod's life; a template has them in a year of their own.
const (
	timeCreated = iota
	timeStarted
	timeReady // changes with every update
	times
)

func markTime(n int) time.Time { return time.Date(1971, 1, 1, 0, 0, n, 0, time.UTC) }

// workload is what the pods of one template have in common.
type workload struct {
	namespace, name, team, image, tag string
	hash, ownerUID, digest, checksum  string
	port                              int32
	env                               []corev1.EnvVar
	sidecar                           bool
}

func newWorkload(r *rand.Rand, n int) workload {
	words := []string{"billing", "checkout", "search", "ingest", "mailer", "gateway", "ledger", "session", "render", "notify"}
	kinds := []string{"api", "worker", "cron", "web"}
	word := func() string { return words[r.IntN(len(words))] }
	w := workload{
		namespace: "team-" + words[n%len(words)],
		name:      fmt.Sprintf("%s-%s-%02d", word(), kinds[r.IntN(len(kinds))], n),
		team:      word(),
		image:     fmt.Sprintf("registry.example.com/%s/%s", word(), word()),
		tag:       fmt.Sprintf("v1.%d.%d", r.IntN(40), r.IntN(20)),
		hash:      randomHex(r, 10), ownerUID: randomUID(r), digest: randomHex(r, 64), checksum: randomHex(r, 32),
		port:    8000 + r.Int32N(1000),
		sidecar: r.IntN(5) == 0,
	}
	for _, name := range []string{"DATABASE_URL", "REDIS_ADDR", "OTEL_ENDPOINT"}[:1+r.IntN(3)] {
		w.env = append(w.env, corev1.EnvVar{Name: name, Value: fmt.Sprintf("%s-%s.%s.svc:%d", word(), randomHex(r, 6), w.namespace, 1024+r.IntN(9000))})
	}
	return w
}

func randomHex(r *rand.Rand, n int) string {
	var b strings.Builder
	for b.Len() < n {
		fmt.Fprintf(&b, "%08x", r.Uint32())
	}
	return b.String()[:n]
}

func randomUID(r *rand.Rand) string {
	h := randomHex(r, 32)
	return h[:8] + "-" + h[8:12] + "-" + h[12:16] + "-" + h[16:20] + "-" + h[20:]
}

// pod is the workload's template. A pod that is not ready waits to be restarted.
func (w *workload) pod(ready bool) *corev1.Pod {
	at := func(n int) metav1.Time { return metav1.NewTime(markTime(n)) }
	labels := map[string]string{"app.kubernetes.io/name": w.name, "app.kubernetes.io/part-of": w.team, "pod-template-hash": w.hash}
	yes, defaultMode, expiry := true, int32(420), int64(3607)
	p := &corev1.Pod{
		TypeMeta: metav1.TypeMeta{APIVersion: "v1", Kind: "Pod"},
		ObjectMeta: metav1.ObjectMeta{
			Name: w.name + "-" + w.hash + "-" + markSuffix, GenerateName: w.name + "-" + w.hash + "-", Namespace: w.namespace,
			UID: markUID, ResourceVersion: markVersion, Generation: 1, CreationTimestamp: at(timeCreated), Labels: labels,
			Annotations: map[string]string{"prometheus.io/scrape": "true", "prometheus.io/port": fmt.Sprint(w.port), "checksum/config": w.checksum},
			OwnerReferences: []metav1.OwnerReference{{
				APIVersion: "apps/v1", Kind: "ReplicaSet", Name: w.name + "-" + w.hash, UID: types.UID(w.ownerUID), Controller: &yes, BlockOwnerDeletion: &yes,
			}},
			ManagedFields: w.managedFields(labels, at),
		},
		Spec: corev1.PodSpec{
			Volumes: []corev1.Volume{
				{Name: "config", VolumeSource: corev1.VolumeSource{ConfigMap: &corev1.ConfigMapVolumeSource{
					LocalObjectReference: corev1.LocalObjectReference{Name: w.name + "-config"}, DefaultMode: &defaultMode,
				}}},
				{Name: "kube-api-access-" + markVolume, VolumeSource: corev1.VolumeSource{Projected: &corev1.ProjectedVolumeSource{
					DefaultMode: &defaultMode,
					Sources: []corev1.VolumeProjection{
						{ServiceAccountToken: &corev1.ServiceAccountTokenProjection{ExpirationSeconds: &expiry, Path: "token"}},
						{ConfigMap: &corev1.ConfigMapProjection{
							LocalObjectReference: corev1.LocalObjectReference{Name: "kube-root-ca.crt"}, Items: []corev1.KeyToPath{{Key: "ca.crt", Path: "ca.crt"}},
						}},
						{DownwardAPI: &corev1.DownwardAPIProjection{Items: []corev1.DownwardAPIVolumeFile{{
							Path: "namespace", FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "metadata.namespace"},
						}}}},
					},
				}}},
			},
			Containers:    []corev1.Container{w.container()},
			RestartPolicy: corev1.RestartPolicyAlways, DNSPolicy: corev1.DNSClusterFirst,
			TerminationGracePeriodSeconds: new(int64(30)), ServiceAccountName: w.name, DeprecatedServiceAccount: w.name,
			NodeName: "node-" + markNode + ".eu.example.internal", SecurityContext: &corev1.PodSecurityContext{}, SchedulerName: "default-scheduler",
			Tolerations: []corev1.Toleration{
				{Key: "node.kubernetes.io/not-ready", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(300))},
				{Key: "node.kubernetes.io/unreachable", Operator: "Exists", Effect: "NoExecute", TolerationSeconds: new(int64(300))},
			},
			Priority: new(int32), EnableServiceLinks: &yes, PreemptionPolicy: new(corev1.PreemptLowerPriority),
		},
	}
	if w.sidecar {
		p.Spec.Containers = append(p.Spec.Containers, corev1.Container{
			Name: "proxy", Image: "registry.example.com/mesh/proxy:v2.4.1", Args: []string{"--drain=30s"}, ImagePullPolicy: corev1.PullIfNotPresent,
			TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		})
	}
	p.Status = w.status(ready, at)
	return p
}

func (w *workload) container() corev1.Container {
	env := append([]corev1.EnvVar{{Name: "POD_IP", ValueFrom: &corev1.EnvVarSource{FieldRef: &corev1.ObjectFieldSelector{APIVersion: "v1", FieldPath: "status.podIP"}}}}, w.env...)
	return corev1.Container{
		Name: "main", Image: w.image + ":" + w.tag, Args: []string{fmt.Sprintf("--listen=:%d", w.port), "--log=json"},
		Ports: []corev1.ContainerPort{{Name: "http", ContainerPort: w.port, Protocol: "TCP"}}, Env: env,
		Resources: corev1.ResourceRequirements{
			Limits:   corev1.ResourceList{"cpu": resource.MustParse("500m"), "memory": resource.MustParse("512Mi")},
			Requests: corev1.ResourceList{"cpu": resource.MustParse("100m"), "memory": resource.MustParse("128Mi")},
		},
		VolumeMounts: []corev1.VolumeMount{
			{Name: "config", MountPath: "/etc/app"},
			{Name: "kube-api-access-" + markVolume, ReadOnly: true, MountPath: "/var/run/secrets/kubernetes.io/serviceaccount"},
		},
		ReadinessProbe: &corev1.Probe{
			ProbeHandler:   corev1.ProbeHandler{HTTPGet: &corev1.HTTPGetAction{Path: "/ready", Port: intstr.FromString("http"), Scheme: "HTTP"}},
			TimeoutSeconds: 1, PeriodSeconds: 10, SuccessThreshold: 1, FailureThreshold: 3,
		},
		TerminationMessagePath: "/dev/termination-log", TerminationMessagePolicy: corev1.TerminationMessageReadFile,
		ImagePullPolicy: corev1.PullIfNotPresent,
	}
}

func (w *workload) status(ready bool, at func(int) metav1.Time) corev1.PodStatus {
	is := corev1.ConditionTrue
	state := corev1.ContainerState{Running: &corev1.ContainerStateRunning{StartedAt: at(timeStarted)}}
	if !ready {
		is = corev1.ConditionFalse
		state = corev1.ContainerState{Waiting: &corev1.ContainerStateWaiting{
			Reason:  "CrashLoopBackOff",
			Message: "back-off 5m0s restarting failed container=main pod=" + w.name + "-" + w.hash + "-" + markSuffix + "_" + w.namespace + "(" + markUID + ")",
		}}
	}
	host := "192.168.10." + markNode
	s := corev1.PodStatus{
		Phase: corev1.PodRunning, HostIP: host, HostIPs: []corev1.HostIP{{IP: host}}, PodIP: markIP, PodIPs: []corev1.PodIP{{IP: markIP}},
		StartTime: new(at(timeCreated)), QOSClass: corev1.PodQOSBurstable,
		ContainerStatuses: []corev1.ContainerStatus{{
			Name: "main", State: state, Ready: ready, Started: &ready, Image: w.image + ":" + w.tag,
			ImageID: w.image + "@sha256:" + w.digest, ContainerID: "containerd://" + markContainer,
		}},
	}
	for _, c := range []struct {
		kind corev1.PodConditionType
		is   corev1.ConditionStatus
		at   int
	}{
		{"PodReadyToStartContainers", corev1.ConditionTrue, timeStarted},
		{corev1.PodInitialized, corev1.ConditionTrue, timeCreated},
		{corev1.PodReady, is, timeReady},
		{corev1.ContainersReady, is, timeReady},
		{corev1.PodScheduled, corev1.ConditionTrue, timeCreated},
	} {
		s.Conditions = append(s.Conditions, corev1.PodCondition{Type: c.kind, Status: c.is, LastTransitionTime: at(c.at)})
	}
	return s
}

// managedFields are those of the controller that made the pod and of the kubelet.
func (w *workload) managedFields(labels map[string]string, at func(int) metav1.Time) []metav1.ManagedFieldsEntry {
	type fields = map[string]any
	leaf := fields{}
	set := func(names ...string) fields {
		f := fields{}
		for _, n := range names {
			f["f:"+n] = leaf
		}
		return f
	}
	with := func(f, more fields) fields {
		maps.Copy(f, more)
		return f
	}
	dot := fields{".": leaf}
	fLabels := with(fields{}, dot)
	for k := range labels {
		fLabels["f:"+k] = leaf
	}
	fEnv := with(fields{`k:{"name":"POD_IP"}`: with(set("name", "valueFrom"), dot)}, dot)
	for _, e := range w.env {
		fEnv[`k:{"name":"`+e.Name+`"}`] = with(set("name", "value"), dot)
	}
	fContainer := with(set("args", "image", "imagePullPolicy", "name", "resources", "terminationMessagePath", "terminationMessagePolicy"), dot)
	fContainer["f:env"] = fEnv
	fContainer["f:ports"] = with(fields{fmt.Sprintf(`k:{"containerPort":%d,"protocol":"TCP"}`, w.port): with(set("containerPort", "name", "protocol"), dot)}, dot)
	fSpec := set("dnsPolicy", "enableServiceLinks", "restartPolicy", "schedulerName", "securityContext", "serviceAccount", "serviceAccountName", "terminationGracePeriodSeconds")
	fSpec["f:containers"] = fields{`k:{"name":"main"}`: fContainer}
	controller := fields{
		"f:metadata": fields{
			"f:annotations": with(set("checksum/config", "prometheus.io/port", "prometheus.io/scrape"), dot), "f:generateName": leaf,
			"f:labels": fLabels, "f:ownerReferences": with(fields{`k:{"uid":"` + w.ownerUID + `"}`: leaf}, dot),
		},
		"f:spec": fSpec,
	}
	fConditions := fields{}
	for _, c := range []string{"ContainersReady", "Initialized", "PodReadyToStartContainers", "Ready"} {
		fConditions[`k:{"type":"`+c+`"}`] = with(set("lastProbeTime", "lastTransitionTime", "status", "type"), dot)
	}
	fStatus := set("containerStatuses", "hostIP", "hostIPs", "phase", "podIP", "startTime")
	fStatus["f:conditions"], fStatus["f:podIPs"] = fConditions, with(fields{`k:{"ip":"` + markIP + `"}`: with(set("ip"), dot)}, dot)
	entry := func(manager, subresource string, time metav1.Time, f fields) metav1.ManagedFieldsEntry {
		raw, err := json.Marshal(f)
		if err != nil { // maps of maps always marshal
			panic(err)
		}
		return metav1.ManagedFieldsEntry{
			Manager: manager, Operation: metav1.ManagedFieldsOperationUpdate, APIVersion: "v1", Time: &time,
			FieldsType: "FieldsV1", FieldsV1: metav1.NewFieldsV1(string(raw)), Subresource: subresource,
		}
	}
	return []metav1.ManagedFieldsEntry{
		entry("kube-controller-manager", "", at(timeCreated), controller),
		entry("kubelet", "status", at(timeReady), fields{"f:status": fStatus}),
	}
}
