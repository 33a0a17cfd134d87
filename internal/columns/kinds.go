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
		ready, status, restarts := podCells(p, at)
		return []any{ready, status, restarts, since(p.CreationTimestamp, at), orNone(p.Status.PodIP), orNone(p.Spec.NodeName)}
	}),
	{Kind: "Service"}: typed("Type Cluster-IP External-IP Port(s) Age Selector*", func(s *core.Service, at time.Time) []any {
		var external []string
		for _, i := range s.Status.LoadBalancer.Ingress {
			external = append(external, cmp.Or(i.IP, i.Hostname))
		}
		external = append(external, s.Spec.ExternalIPs...)
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
		for key, value := range n.Labels {
			role, ok := strings.CutPrefix(key, "node-role.kubernetes.io/")
			if key == "kubernetes.io/role" {
				role, ok = value, true
			}
			if ok && role != "" {
				roles = append(roles, role)
			}
		}
		for _, a := range n.Status.Addresses {
			if a.Type == core.NodeInternalIP {
				address = cmp.Or(address, a.Address)
			}
		}
		slices.Sort(roles)
		return []any{status, list(slices.Compact(roles)), since(n.CreationTimestamp, at), n.Status.NodeInfo.KubeletVersion, orNone(address)}
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
		class, capacity, size := "", "", c.Status.Capacity[core.ResourceStorage]
		if c.Spec.StorageClassName != nil {
			class = *c.Spec.StorageClassName
		}
		if c.Spec.VolumeName != "" {
			capacity = size.String()
		}
		return []any{phase(&c.ObjectMeta, string(c.Status.Phase)), c.Spec.VolumeName, capacity, class, since(c.CreationTimestamp, at)}
	}),
	{Kind: "PersistentVolume"}: typed("Capacity Reclaim_Policy Status Claim StorageClass Age", func(v *core.PersistentVolume, at time.Time) []any {
		claim, size := "", v.Spec.Capacity[core.ResourceStorage]
		if r := v.Spec.ClaimRef; r != nil {
			claim = r.Namespace + "/" + r.Name
		}
		return []any{size.String(), string(v.Spec.PersistentVolumeReclaimPolicy), phase(&v.ObjectMeta, string(v.Status.Phase)), claim, v.Spec.StorageClassName, since(v.CreationTimestamp, at)}
	}),
	{Kind: "Event"}: typed("Last_Seen Type Reason Object Message", func(e *core.Event, at time.Time) []any {
		seen := cmp.Or(e.LastTimestamp, e.FirstTimestamp, metav1.Time{Time: e.EventTime.Time})
		if e.Series != nil {
			seen = metav1.Time{Time: e.Series.LastObservedTime.Time}
		}
		object := strings.ToLower(e.InvolvedObject.Kind)
		if name := e.InvolvedObject.Name; name != "" {
			object += "/" + name
		}
		return []any{since(seen, at), e.Type, e.Reason, object, strings.TrimSpace(e.Message)}
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
		is := func(kind batch.JobConditionType) bool {
			return slices.ContainsFunc(j.Status.Conditions, func(c batch.JobCondition) bool { return c.Type == kind && c.Status == core.ConditionTrue })
		}
		status := "Running"
		switch {
		case is(batch.JobComplete):
			status = "Complete"
		case is(batch.JobFailed):
			status = "Failed"
		case j.DeletionTimestamp != nil:
			status = terminating
		case is(batch.JobSuspended):
			status = "Suspended"
		}
		completions := of(j.Status.Succeeded, wanted(j.Spec.Completions))
		if n := wanted(j.Spec.Parallelism); j.Spec.Completions == nil && n > 1 {
			completions += fmt.Sprint(" of ", n)
		}
		took := ""
		if s := j.Status.StartTime; s != nil {
			end := at
			if j.Status.CompletionTime != nil {
				end = j.Status.CompletionTime.Time
			}
			took = duration.HumanDuration(end.Sub(s.Time))
		}
		return []any{status, completions, took, since(j.CreationTimestamp, at), images(&j.Spec.Template)}
	}),
	{Group: "batch", Kind: "CronJob"}: typed("Schedule Suspend Active Last_Schedule Age", func(c *batch.CronJob, at time.Time) []any {
		last := "<none>"
		if c.Status.LastScheduleTime != nil {
			last = since(*c.Status.LastScheduleTime, at)
		}
		suspend := "False"
		if c.Spec.Suspend != nil && *c.Spec.Suspend {
			suspend = "True"
		}
		return []any{c.Spec.Schedule, suspend, len(c.Status.Active), last, since(c.CreationTimestamp, at)}
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
		return []any{orNone(class), cmp.Or(strings.Join(hosts, ","), "*"), strings.Join(addresses, ","), since(i.CreationTimestamp, at)}
	}),
	{Group: "autoscaling", Kind: "HorizontalPodAutoscaler"}: typed("Reference MinPods MaxPods Replicas Age", func(h *autoscaling.HorizontalPodAutoscaler, at time.Time) []any {
		r := h.Spec.ScaleTargetRef
		return []any{r.Kind + "/" + r.Name, wanted(h.Spec.MinReplicas), h.Spec.MaxReplicas, h.Status.CurrentReplicas, since(h.CreationTimestamp, at)}
	}),
	{Group: "storage.k8s.io", Kind: "StorageClass"}: typed("Provisioner Age", func(c *storage.StorageClass, at time.Time) []any {
		return []any{c.Provisioner, since(c.CreationTimestamp, at)}
	}),
}

// podCells are the cells of kubectl for the containers of a pod: how many are ready, the word for what the pod is doing, which
// is its phase or why a container does not run, and the restarts. Init containers that run beside the others (sidecars) count
// as containers.
func podCells(p *core.Pod, at time.Time) (ready, status, restarts string) {
	is := func(kind core.PodConditionType) bool {
		return slices.ContainsFunc(p.Status.Conditions, func(c core.PodCondition) bool { return c.Type == kind && c.Status == core.ConditionTrue })
	}
	status = cmp.Or(p.Status.Reason, string(p.Status.Phase))
	for i := range p.Status.Conditions {
		if c := &p.Status.Conditions[i]; c.Type == core.PodScheduled && c.Reason == core.PodReasonSchedulingGated {
			status = c.Reason
		}
	}
	sidecars := map[string]bool{}
	for i := range p.Spec.InitContainers {
		if c := &p.Spec.InitContainers[i]; c.RestartPolicy != nil && *c.RestartPolicy == core.ContainerRestartPolicyAlways {
			sidecars[c.Name] = true
		}
	}
	var all, lasting restartCount // of the init containers, and of the sidecars among them
	n, initializing := 0, false
	for i := range p.Status.InitContainerStatuses {
		c := &p.Status.InitContainerStatuses[i]
		all.add(c)
		if sidecars[c.Name] {
			lasting.add(c)
		}
		if c.State.Terminated != nil && c.State.Terminated.ExitCode == 0 {
			continue
		}
		if sidecars[c.Name] && c.Started != nil && *c.Started {
			if c.Ready {
				n++
			}
			continue
		}
		reason := halted(&c.State)
		if reason == "" || reason == "PodInitializing" {
			reason = of(i, len(p.Spec.InitContainers))
		}
		status, initializing = "Init:"+reason, true
		break
	}
	if !initializing || is(core.PodInitialized) {
		all = lasting
		running, failed := false, ""
		for i := range slices.Backward(p.Status.ContainerStatuses) {
			c := &p.Status.ContainerStatuses[i]
			all.add(c)
			reason := halted(&c.State)
			status = cmp.Or(reason, status)
			if reason == "" && c.Ready {
				n++
				running = running || c.State.Running != nil
			}
			if c.State.Terminated != nil && c.State.Terminated.ExitCode != 0 {
				failed = reason
			}
		}
		switch {
		case status != "Completed":
		case running && is(core.PodReady):
			status = "Running"
		case failed != "":
			status = failed
		case running:
			status = "NotReady"
		}
	}
	switch {
	case p.DeletionTimestamp == nil:
	case p.Status.Reason == "NodeLost":
		status = "Unknown"
	case p.Status.Phase != core.PodSucceeded && p.Status.Phase != core.PodFailed:
		status = terminating
	}
	return of(n, len(p.Spec.Containers)+len(sidecars)), status, all.text(at)
}

// restartCount counts the restarts of containers.
type restartCount struct {
	n    int32
	last metav1.Time // when a container ended before the last of them; zero: it is not known
}

func (s *restartCount) add(c *core.ContainerStatus) {
	s.n += c.RestartCount
	if t := c.LastTerminationState.Terminated; t != nil && s.last.Before(&t.FinishedAt) {
		s.last = t.FinishedAt
	}
}

func (s *restartCount) text(at time.Time) string {
	if s.n == 0 || s.last.IsZero() {
		return fmt.Sprint(s.n)
	}
	return fmt.Sprintf("%d (%s ago)", s.n, since(s.last, at))
}

// terminating is the status of an object from the request to delete it on.
const terminating = "Terminating"

func phase(o *metav1.ObjectMeta, phase string) string {
	if o.DeletionTimestamp != nil {
		return terminating
	}
	return phase
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
