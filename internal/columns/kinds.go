package columns

import (
	"cmp"
	"fmt"
	"slices"
	"strings"
	"time"

	apps "k8s.io/api/apps/v1"
	autoscaling "k8s.io/api/autoscaling/v2"
	batch "k8s.io/api/batch/v1"
	core "k8s.io/api/core/v1"
	networking "k8s.io/api/networking/v1"
	storage "k8s.io/api/storage/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/util/duration"
)

var kinds = map[schema.GroupKind]kind{
	{Kind: "Pod"}: typed("Ready Status Restarts Age IP* Node*", func(p *core.Pod, at time.Time) []any {
		ready, restarts := 0, int32(0)
		for i := range p.Status.ContainerStatuses {
			c := &p.Status.ContainerStatuses[i]
			restarts += c.RestartCount
			if c.Ready {
				ready++
			}
		}
		return []any{of(ready, len(p.Spec.Containers)), podStatus(p), restarts, since(p.CreationTimestamp, at), orNone(p.Status.PodIP), orNone(p.Spec.NodeName)}
	}),
	{Kind: "Service"}: typed("Type Cluster-IP External-IP Port(s) Age Selector*", func(s *core.Service, at time.Time) []any {
		external := slices.Clone(s.Spec.ExternalIPs)
		for _, i := range s.Status.LoadBalancer.Ingress {
			external = append(external, cmp.Or(i.IP, i.Hostname))
		}
		if s.Spec.ExternalName != "" {
			external = append(external, s.Spec.ExternalName)
		}
		if len(external) == 0 && s.Spec.Type == core.ServiceTypeLoadBalancer {
			external = []string{"<pending>"}
		}
		var ports []string
		for _, p := range s.Spec.Ports {
			text := fmt.Sprint(p.Port)
			if p.NodePort > 0 {
				text += fmt.Sprint(":", p.NodePort)
			}
			ports = append(ports, text+"/"+string(p.Protocol))
		}
		return []any{string(s.Spec.Type), orNone(s.Spec.ClusterIP), list(external), list(ports), since(s.CreationTimestamp, at), labels(s.Spec.Selector)}
	}),
	{Kind: "Node"}: typed("Status Roles Age Version Internal-IP*", func(n *core.Node, at time.Time) []any {
		status, address := "Unknown", ""
		for _, c := range n.Status.Conditions {
			if c.Type == core.NodeReady {
				status = map[core.ConditionStatus]string{core.ConditionTrue: "Ready"}[c.Status]
				status = cmp.Or(status, "NotReady")
			}
		}
		if n.Spec.Unschedulable {
			status += ",SchedulingDisabled"
		}
		var roles []string
		for key := range n.Labels {
			if role, ok := strings.CutPrefix(key, "node-role.kubernetes.io/"); ok && role != "" {
				roles = append(roles, role)
			}
		}
		for _, a := range n.Status.Addresses {
			if a.Type == core.NodeInternalIP {
				address = cmp.Or(address, a.Address)
			}
		}
		slices.Sort(roles)
		return []any{status, list(roles), since(n.CreationTimestamp, at), n.Status.NodeInfo.KubeletVersion, orNone(address)}
	}),
	{Kind: "Namespace"}: typed("Status Age", func(n *core.Namespace, at time.Time) []any {
		return []any{string(n.Status.Phase), since(n.CreationTimestamp, at)}
	}),
	{Kind: "ConfigMap"}: typed("Data Age", func(c *core.ConfigMap, at time.Time) []any {
		return []any{len(c.Data) + len(c.BinaryData), since(c.CreationTimestamp, at)}
	}),
	{Kind: "Secret"}: typed("Type Data Age", func(s *struct {
		metav1.ObjectMeta `json:"metadata"`
		Type              string
		Data              map[string]any // redacted
	}, at time.Time,
	) []any {
		return []any{s.Type, len(s.Data), since(s.CreationTimestamp, at)}
	}),
	{Kind: "PersistentVolumeClaim"}: typed("Status Volume Capacity StorageClass Age", func(c *core.PersistentVolumeClaim, at time.Time) []any {
		class, size := "", c.Status.Capacity[core.ResourceStorage]
		if c.Spec.StorageClassName != nil {
			class = *c.Spec.StorageClassName
		}
		return []any{string(c.Status.Phase), c.Spec.VolumeName, size.String(), class, since(c.CreationTimestamp, at)}
	}),
	{Kind: "PersistentVolume"}: typed("Capacity Reclaim_Policy Status Claim StorageClass Age", func(v *core.PersistentVolume, at time.Time) []any {
		claim, size := "", v.Spec.Capacity[core.ResourceStorage]
		if r := v.Spec.ClaimRef; r != nil {
			claim = r.Namespace + "/" + r.Name
		}
		return []any{size.String(), string(v.Spec.PersistentVolumeReclaimPolicy), string(v.Status.Phase), claim, v.Spec.StorageClassName, since(v.CreationTimestamp, at)}
	}),
	{Kind: "Event"}: typed("Last_Seen Type Reason Object Message", func(e *core.Event, at time.Time) []any {
		seen := e.LastTimestamp
		if seen.IsZero() {
			seen = metav1.Time{Time: e.EventTime.Time}
		}
		return []any{since(seen, at), e.Type, e.Reason, strings.ToLower(e.InvolvedObject.Kind) + "/" + e.InvolvedObject.Name, strings.TrimSpace(e.Message)}
	}),
	{Group: "apps", Kind: "Deployment"}: typed("Ready Up-to-date Available Age Images*", func(d *apps.Deployment, at time.Time) []any {
		s := &d.Status
		return []any{of(s.ReadyReplicas, wanted(d.Spec.Replicas)), s.UpdatedReplicas, s.AvailableReplicas, since(d.CreationTimestamp, at), images(&d.Spec.Template)}
	}),
	{Group: "apps", Kind: "ReplicaSet"}: typed("Desired Current Ready Age Images*", func(r *apps.ReplicaSet, at time.Time) []any {
		return []any{wanted(r.Spec.Replicas), r.Status.Replicas, r.Status.ReadyReplicas, since(r.CreationTimestamp, at), images(&r.Spec.Template)}
	}),
	{Group: "apps", Kind: "StatefulSet"}: typed("Ready Age Images*", func(s *apps.StatefulSet, at time.Time) []any {
		return []any{of(s.Status.ReadyReplicas, wanted(s.Spec.Replicas)), since(s.CreationTimestamp, at), images(&s.Spec.Template)}
	}),
	{Group: "apps", Kind: "DaemonSet"}: typed("Desired Current Ready Up-to-date Available Age Images*", func(d *apps.DaemonSet, at time.Time) []any {
		s := &d.Status
		return []any{s.DesiredNumberScheduled, s.CurrentNumberScheduled, s.NumberReady, s.UpdatedNumberScheduled, s.NumberAvailable, since(d.CreationTimestamp, at), images(&d.Spec.Template)}
	}),
	{Group: "batch", Kind: "Job"}: typed("Status Completions Duration Age Images*", func(j *batch.Job, at time.Time) []any {
		status := "Running"
		for _, c := range j.Status.Conditions {
			if c.Status == core.ConditionTrue && (c.Type == batch.JobComplete || c.Type == batch.JobFailed || c.Type == batch.JobSuspended) {
				status = string(c.Type)
			}
		}
		took := ""
		if s := j.Status.StartTime; s != nil {
			end := at
			if j.Status.CompletionTime != nil {
				end = j.Status.CompletionTime.Time
			}
			took = duration.HumanDuration(end.Sub(s.Time))
		}
		return []any{status, of(j.Status.Succeeded, wanted(j.Spec.Completions)), took, since(j.CreationTimestamp, at), images(&j.Spec.Template)}
	}),
	{Group: "batch", Kind: "CronJob"}: typed("Schedule Suspend Active Last_Schedule Age", func(c *batch.CronJob, at time.Time) []any {
		last := "<none>"
		if c.Status.LastScheduleTime != nil {
			last = since(*c.Status.LastScheduleTime, at)
		}
		return []any{c.Spec.Schedule, c.Spec.Suspend != nil && *c.Spec.Suspend, len(c.Status.Active), last, since(c.CreationTimestamp, at)}
	}),
	{Group: "networking.k8s.io", Kind: "Ingress"}: typed("Class Hosts Address Age", func(i *networking.Ingress, at time.Time) []any {
		class := ""
		if i.Spec.IngressClassName != nil {
			class = *i.Spec.IngressClassName
		}
		var hosts, addresses []string
		for _, r := range i.Spec.Rules {
			hosts = append(hosts, cmp.Or(r.Host, "*"))
		}
		for _, l := range i.Status.LoadBalancer.Ingress {
			addresses = append(addresses, cmp.Or(l.IP, l.Hostname))
		}
		return []any{orNone(class), list(hosts), strings.Join(addresses, ","), since(i.CreationTimestamp, at)}
	}),
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}: typed("Reference MinPods MaxPods Replicas Age", func(h *autoscaling.HorizontalPodAutoscaler, at time.Time) []any {
		r := h.Spec.ScaleTargetRef
		return []any{r.Kind + "/" + r.Name, wanted(h.Spec.MinReplicas), h.Spec.MaxReplicas, h.Status.CurrentReplicas, since(h.CreationTimestamp, at)}
	}),
	{Group: "storage.k8s.io", Kind: "StorageClass"}: typed("Provisioner Age", func(c *storage.StorageClass, at time.Time) []any {
		return []any{c.Provisioner, since(c.CreationTimestamp, at)}
	}),
}

// podStatus is the word of kubectl for what a pod is doing: its phase, or why a container
// does not run.
func podStatus(p *core.Pod) string {
	status := cmp.Or(p.Status.Reason, string(p.Status.Phase))
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == core.PodScheduled && c.Reason == core.PodReasonSchedulingGated {
			status = c.Reason
		}
	}
	if p.DeletionTimestamp != nil && p.Status.Phase != core.PodSucceeded && p.Status.Phase != core.PodFailed {
		return "Terminating"
	}
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		if c.State.Terminated != nil && c.State.Terminated.ExitCode == 0 || c.Started != nil && *c.Started {
			continue
		}
		reason := halted(&c.State)
		if reason == "" || reason == "PodInitializing" {
			reason = of(i, len(p.Spec.InitContainers))
		}
		return "Init:" + reason
	}
	running := false
	for i := range slices.Backward(p.Status.ContainerStatuses) {
		c := &p.Status.ContainerStatuses[i]
		running = running || c.Ready && c.State.Running != nil
		status = cmp.Or(halted(&c.State), status)
	}
	if status == "Completed" && running {
		return "Running"
	}
	return status
}

// halted is why a container does not run, empty if it runs.
func halted(s *core.ContainerState) string {
	switch {
	case s.Waiting != nil:
		return s.Waiting.Reason
	case s.Terminated == nil:
		return ""
	case s.Terminated.Reason != "":
		return s.Terminated.Reason
	case s.Terminated.Signal != 0:
		return fmt.Sprint("Signal:", s.Terminated.Signal)
	}
	return fmt.Sprint("ExitCode:", s.Terminated.ExitCode)
}

func since(t metav1.Time, at time.Time) string {
	if t.IsZero() {
		return "<unknown>"
	}
	return duration.HumanDuration(at.Sub(t.Time))
}

func of[A, B any](some A, all B) string { return fmt.Sprintf("%v/%v", some, all) }

func list(items []string) string { return orNone(strings.Join(items, ",")) }

func labels(set map[string]string) string {
	return orNone(metav1.FormatLabelSelector(&metav1.LabelSelector{MatchLabels: set}))
}

func orNone(text string) string { return cmp.Or(text, "<none>") }

// wanted is a number of replicas, which is 1 if it is not set.
func wanted(n *int32) int32 {
	if n == nil {
		return 1
	}
	return *n
}

func images(t *core.PodTemplateSpec) string {
	var names []string
	for i := range t.Spec.Containers {
		names = append(names, t.Spec.Containers[i].Image)
	}
	return list(names)
}
