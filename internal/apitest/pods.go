package apitest

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/rand/v2"
	"time"
)

// Pods generates pods as an API server sends them: compact JSON with managedFields
// of two managers and the variation of a real cluster (many owners, images, nodes
// and phases; unique uids, IPs, names and timestamps). A pod is about 5.5 KB.
type Pods struct {
	rand     *rand.Rand
	apps     []podApp
	revision uint64
}

type podApp struct {
	namespace, name, hash, ownerUID, image, imageID, config, tag, team string
	statefulSet                                                        bool
	port                                                               int
	env                                                                []string
}

// NewPods returns a generator; equal seeds give equal pods.
func NewPods(seed uint64) *Pods {
	g := &Pods{rand: rand.New(rand.NewPCG(seed, 42)), revision: 91_000_000}
	words := []string{"billing", "checkout", "search", "ingest", "mailer", "gateway", "ledger", "session", "render", "notify"}
	for i := range 60 {
		a := podApp{
			namespace:   fmt.Sprintf("team-%s", words[g.rand.IntN(len(words))]),
			name:        fmt.Sprintf("%s-%s", words[g.rand.IntN(len(words))], []string{"api", "worker", "cron", "web"}[g.rand.IntN(4)]),
			hash:        g.letters(9),
			ownerUID:    g.uid(),
			image:       fmt.Sprintf("registry.example.com/%s/%s", words[g.rand.IntN(len(words))], words[g.rand.IntN(len(words))]),
			imageID:     g.hex(32),
			config:      g.hex(16),
			tag:         fmt.Sprintf("v1.%d.%d-%s", g.rand.IntN(40), g.rand.IntN(20), g.hex(4)),
			team:        words[g.rand.IntN(len(words))],
			statefulSet: i%6 == 5,
			port:        8000 + g.rand.IntN(1000),
		}
		for j := range 1 + g.rand.IntN(4) {
			a.env = append(a.env, fmt.Sprintf("%s_%d", []string{"DATABASE_URL", "REDIS_ADDR", "LOG_LEVEL", "FEATURE_FLAGS", "OTEL_ENDPOINT"}[g.rand.IntN(5)], j), fmt.Sprintf("%s.%s.svc:%d", g.letters(8), a.namespace, 1024+g.rand.IntN(9000)))
		}
		g.apps = append(g.apps, a)
	}
	return g
}

func (g *Pods) hex(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = byte(g.rand.Uint32())
	}
	return hex.EncodeToString(b)
}

func (g *Pods) letters(n int) string {
	b := make([]byte, n)
	for i := range b {
		b[i] = "bcdfghjklmnpqrstvwxz2456789"[g.rand.IntN(27)]
	}
	return string(b)
}

func (g *Pods) uid() string {
	h := g.hex(16)
	return h[:8] + "-" + h[8:12] + "-4" + h[13:16] + "-a" + h[17:20] + "-" + h[20:]
}

// clock starts a pod's life and returns the times of it: each is up to some seconds after the one before.
func (g *Pods) clock() func() string {
	at := 1_790_000_000 + g.rand.Int64N(9_000_000)
	return func() string {
		at += g.rand.Int64N(4)
		return time.Unix(at, 0).UTC().Format(time.RFC3339)
	}
}

type (
	jmap = map[string]any
	jarr = []any
)

// Next returns a pod with apiVersion and kind, as a watch event has it.
func (g *Pods) Next() []byte {
	a := g.apps[g.rand.IntN(len(g.apps))]
	g.revision += 1 + uint64(g.rand.IntN(9))
	name, owner, ownerName := a.name+"-"+a.hash+"-"+g.letters(5), "ReplicaSet", a.name+"-"+a.hash
	labels := jmap{"app.kubernetes.io/name": a.name, "app.kubernetes.io/part-of": a.team, "pod-template-hash": a.hash}
	if a.statefulSet {
		name, owner, ownerName = fmt.Sprintf("%s-%d", a.name, g.rand.IntN(200)), "StatefulSet", a.name
		labels = jmap{"app.kubernetes.io/name": a.name, "controller-revision-hash": ownerName + "-" + a.hash, "statefulset.kubernetes.io/pod-name": name}
	}
	ip, host := fmt.Sprintf("10.%d.%d.%d", g.rand.IntN(40), g.rand.IntN(256), g.rand.IntN(256)), fmt.Sprintf("192.168.%d.%d", g.rand.IntN(4), g.rand.IntN(256))
	now := g.clock()
	created, started := now(), now()
	phase, ready := "Running", "True"
	state := jmap{"running": jmap{"startedAt": started}}
	if g.rand.IntN(8) == 0 {
		phase, ready = "Pending", "False"
		state = jmap{"waiting": jmap{"reason": "CrashLoopBackOff", "message": "back-off 5m0s restarting failed container=main pod=" + name + "_" + a.namespace}}
	}
	var env jarr
	for i := 0; i < len(a.env); i += 2 {
		env = append(env, jmap{"name": a.env[i], "value": a.env[i+1]})
	}
	env = append(env, jmap{"name": "POD_IP", "valueFrom": jmap{"fieldRef": jmap{"apiVersion": "v1", "fieldPath": "status.podIP"}}})
	volume := "kube-api-access-" + g.letters(5)
	condition := func(kind, status string) jmap {
		return jmap{"type": kind, "status": status, "lastProbeTime": nil, "lastTransitionTime": now()}
	}
	object := jmap{
		"apiVersion": "v1", "kind": "Pod",
		"metadata": jmap{
			"name": name, "generateName": ownerName + "-", "namespace": a.namespace, "uid": g.uid(), "resourceVersion": fmt.Sprint(g.revision),
			"generation": 1, "creationTimestamp": created, "labels": labels,
			"annotations":     jmap{"prometheus.io/scrape": "true", "prometheus.io/port": fmt.Sprint(a.port), "checksum/config": a.config},
			"ownerReferences": jarr{jmap{"apiVersion": "apps/v1", "kind": owner, "name": ownerName, "uid": a.ownerUID, "controller": true, "blockOwnerDeletion": true}},
			"managedFields":   g.managedFields(a, labels, created, started),
		},
		"spec": jmap{
			"volumes": jarr{
				jmap{"name": "config", "configMap": jmap{"name": a.name + "-config", "defaultMode": 420}},
				jmap{"name": volume, "projected": jmap{"defaultMode": 420, "sources": jarr{
					jmap{"serviceAccountToken": jmap{"expirationSeconds": 3607, "path": "token"}},
					jmap{"configMap": jmap{"name": "kube-root-ca.crt", "items": jarr{jmap{"key": "ca.crt", "path": "ca.crt"}}}},
					jmap{"downwardAPI": jmap{"items": jarr{jmap{"path": "namespace", "fieldRef": jmap{"apiVersion": "v1", "fieldPath": "metadata.namespace"}}}}},
				}}},
			},
			"containers": jarr{jmap{
				"name": "main", "image": a.image + ":" + a.tag, "args": jarr{"--listen=:" + fmt.Sprint(a.port), "--log=json"},
				"ports": jarr{jmap{"name": "http", "containerPort": a.port, "protocol": "TCP"}}, "env": env,
				"resources":              jmap{"limits": jmap{"cpu": "500m", "memory": "512Mi"}, "requests": jmap{"cpu": "100m", "memory": "128Mi"}},
				"volumeMounts":           jarr{jmap{"name": "config", "mountPath": "/etc/app"}, jmap{"name": volume, "readOnly": true, "mountPath": "/var/run/secrets/kubernetes.io/serviceaccount"}},
				"readinessProbe":         jmap{"httpGet": jmap{"path": "/ready", "port": "http", "scheme": "HTTP"}, "timeoutSeconds": 1, "periodSeconds": 10, "successThreshold": 1, "failureThreshold": 3},
				"terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File", "imagePullPolicy": "IfNotPresent",
			}},
			"restartPolicy": "Always", "terminationGracePeriodSeconds": 30, "dnsPolicy": "ClusterFirst", "serviceAccountName": a.name, "serviceAccount": a.name,
			"nodeName": fmt.Sprintf("node-%02d.eu.example.internal", g.rand.IntN(80)), "securityContext": jmap{}, "schedulerName": "default-scheduler",
			"tolerations": jarr{
				jmap{"key": "node.kubernetes.io/not-ready", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
				jmap{"key": "node.kubernetes.io/unreachable", "operator": "Exists", "effect": "NoExecute", "tolerationSeconds": 300},
			},
			"priority": 0, "enableServiceLinks": true, "preemptionPolicy": "PreemptLowerPriority",
		},
		"status": jmap{
			"phase":      phase,
			"conditions": jarr{condition("PodReadyToStartContainers", "True"), condition("Initialized", "True"), condition("Ready", ready), condition("ContainersReady", ready), condition("PodScheduled", "True")},
			"hostIP":     host, "hostIPs": jarr{jmap{"ip": host}}, "podIP": ip, "podIPs": jarr{jmap{"ip": ip}}, "startTime": created,
			"containerStatuses": jarr{jmap{
				"name": "main", "state": state, "lastState": jmap{}, "ready": ready == "True", "restartCount": g.rand.IntN(5), "image": a.image + ":" + a.tag,
				"imageID": a.image + "@sha256:" + a.imageID, "containerID": "containerd://" + g.hex(32), "started": true,
			}},
			"qosClass": "Burstable",
		},
	}
	raw, err := json.Marshal(object)
	if err != nil {
		panic(err)
	}
	return raw
}

// managedFields copies the shape server-side field tracking gives a pod: the controller's entry and the kubelet's.
func (g *Pods) managedFields(a podApp, labels jmap, created, updated string) jarr {
	fl := jmap{".": jmap{}}
	for k := range labels {
		fl["f:"+k] = jmap{}
	}
	fenv := jmap{".": jmap{}}
	for i := 0; i < len(a.env); i += 2 {
		fenv[`k:{"name":"`+a.env[i]+`"}`] = jmap{".": jmap{}, "f:name": jmap{}, "f:value": jmap{}}
	}
	fcond := jmap{}
	for _, c := range []string{"ContainersReady", "Initialized", "PodReadyToStartContainers", "Ready"} {
		fcond[`k:{"type":"`+c+`"}`] = jmap{".": jmap{}, "f:lastProbeTime": jmap{}, "f:lastTransitionTime": jmap{}, "f:status": jmap{}, "f:type": jmap{}}
	}
	return jarr{
		jmap{"manager": "kube-controller-manager", "operation": "Update", "apiVersion": "v1", "time": created, "fieldsType": "FieldsV1", "fieldsV1": jmap{
			"f:metadata": jmap{"f:annotations": jmap{".": jmap{}, "f:checksum/config": jmap{}, "f:prometheus.io/port": jmap{}, "f:prometheus.io/scrape": jmap{}}, "f:generateName": jmap{}, "f:labels": fl, "f:ownerReferences": jmap{".": jmap{}, `k:{"uid":"` + a.ownerUID + `"}`: jmap{}}},
			"f:spec": jmap{
				"f:containers": jmap{`k:{"name":"main"}`: jmap{
					".": jmap{}, "f:args": jmap{}, "f:env": fenv, "f:image": jmap{}, "f:imagePullPolicy": jmap{}, "f:name": jmap{},
					"f:ports":     jmap{".": jmap{}, fmt.Sprintf(`k:{"containerPort":%d,"protocol":"TCP"}`, a.port): jmap{".": jmap{}, "f:containerPort": jmap{}, "f:name": jmap{}, "f:protocol": jmap{}}},
					"f:resources": jmap{}, "f:terminationMessagePath": jmap{}, "f:terminationMessagePolicy": jmap{},
				}},
				"f:dnsPolicy": jmap{}, "f:enableServiceLinks": jmap{}, "f:restartPolicy": jmap{}, "f:schedulerName": jmap{}, "f:securityContext": jmap{}, "f:serviceAccount": jmap{}, "f:terminationGracePeriodSeconds": jmap{},
			},
		}},
		jmap{"manager": "kubelet", "operation": "Update", "apiVersion": "v1", "time": updated, "fieldsType": "FieldsV1", "subresource": "status", "fieldsV1": jmap{
			"f:status": jmap{"f:conditions": fcond, "f:containerStatuses": jmap{}, "f:hostIP": jmap{}, "f:phase": jmap{}, "f:podIP": jmap{}, "f:podIPs": jmap{".": jmap{}}, "f:startTime": jmap{}},
		}},
	}
}

// ListItem returns a pod without apiVersion and kind, as a list response has it.
func ListItem(pod []byte) []byte {
	item := bytes.Replace(pod, []byte(`"apiVersion":"v1","kind":"Pod",`), nil, 1)
	if len(item) == len(pod) {
		panic("the pod does not start with apiVersion and kind")
	}
	return item
}

// FailedPod is a pod with most kinds of values.
const FailedPod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-1","namespace":"prod","uid":"u-1","resourceVersion":"41","generation":3,` +
	`"creationTimestamp":"2026-01-02T03:04:05Z","deletionTimestamp":"2026-02-02T03:04:05Z","generateName":"web-","labels":{"app":"web","tier":"front"},` +
	`"annotations":{"note":"a \"quoted\" one","example.com/x":"y"},"finalizers":["example.com/keep"],` +
	`"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web","uid":"u-0","controller":true}]},` +
	`"spec":{"nodeName":"node-1","priority":9007199254740993,"ratio":1.5,"host":false,"none":null,"containers":[{"name":"a","image":"img:1","resources":{"limits":{"memory":"200Mi","cpu":"500m"}}},{"name":"b","image":"img:2"}]},` +
	`"status":{"phase":"Failed","text":"caf\u00e9 \u2603 <&>","conditions":[{"type":"Ready","status":"False"},{"type":"Initialized","status":"True"}]}}`

// BarePod is a pod with nothing but a name.
const BarePod = `{"kind":"Pod","apiVersion":"v1","metadata":{"name":"bare"}}`
