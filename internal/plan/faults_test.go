package plan_test

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/internal/plan"
)

func overlapping(watch, earlier, resource, keys string) string {
	return "watch " + watch + " and watch " + earlier + " both watch " + resource + ", and their " + keys +
		" differ, but an object is recorded in one form: use the same edits and put the difference in routes[].drop or routes[].redact, or keep them apart by excludeResources or by plain namespaces that have none in common"
}

// TestWatchesThatDoNotOverlap are watches that may edit differently, as far as is
// known without a cluster.
func TestWatchesThatDoNotOverlap(t *testing.T) {
	for _, watches := range []string{
		"[{name: a, resources: [pods]}, {name: b, resources: [pods], drop: [metadata.managedFields]}]", // alike
		"[{name: a, resources: [pods], redact: [spec, status.a]}, {name: b, resources: [pods], redact: ['status[\"a\"]', spec]}]",
		"[{name: a, resources: [pods], exposeSecrets: true}, {name: b, resources: [pods]}]",
		"[{name: a, resources: [pods], namespaces: {include: [one]}}, {name: b, resources: [pods], drop: [spec], namespaces: {include: [two]}}]",
		"[{name: a, resources: ['*'], excludeResources: [pods]}, {name: b, resources: [pods, po], drop: [spec]}]",
		"[{name: a, resources: ['*.apps']}, {name: b, resources: [events.events.k8s.io, deployments.example.com], drop: [spec]}]",
		"[{name: a, resources: ['*']}, {name: b, resources: [events.events.k8s.io], drop: [spec]}]",
		"[{name: a, resources: [deployments]}, {name: b, resources: [deployments.apps], drop: [spec]}]", // discovery knows
	} {
		if _, err := plan.Compile(load(t, "watches: "+watches+"\n")); err != nil {
			t.Errorf("%s: %v", watches, err)
		}
	}
}

func TestFaults(t *testing.T) {
	const sink = "sinks: [{name: s, console: {}}]\n"
	watch := func(s string) string { return "watches:\n- name: w\n  resources: [pods]\n  " + s + "\n" }
	routes := func(s string) string {
		return "watches: [{name: w, resources: [pods]}]\n" + sink + "routes:\n- name: r\n  sinks: [s]\n  " + s + "\n"
	}
	for name, tc := range map[string]struct{ text, want string }{
		"resources": {
			"watches:\n- {name: w, resources: [pods/log, Pods, \"pods*\", \"a b\", .apps, \"*.*\", deployments..apps]}\n",
			`4:25: watches[0].resources[0]: "pods/log" has a slash; write RESOURCE[.VERSION][.GROUP], such as deployments.apps. Subresources cannot be watched
4:35: watches[0].resources[1]: "Pods" is not in lower case; write the plural as kubectl api-resources shows it, such as deployments.apps
4:41: watches[0].resources[2]: "pods*" is not a resource; write RESOURCE[.VERSION][.GROUP], *.GROUP or *
4:50: watches[0].resources[3]: "a b" is not a resource; write RESOURCE[.VERSION][.GROUP], *.GROUP or *
4:57: watches[0].resources[4]: ".apps" is not a resource; write RESOURCE[.VERSION][.GROUP], *.GROUP or *
4:64: watches[0].resources[5]: "*.*" is not a resource; write RESOURCE[.VERSION][.GROUP], *.GROUP or *
4:71: watches[0].resources[6]: "deployments..apps" is not a resource; write RESOURCE[.VERSION][.GROUP], *.GROUP or *`,
		},
		"body": {
			"watches: [{name: w, resources: [pods]}]\nsinks:\n- name: s\n  console: {}\n  body: |\n    {\"text\":\n      event.nam + evnt.id}\n- {name: t, console: {}, body: 'event.changedBy + \"x\"'}\n",
			`9:12: sinks[0].body: undefined field 'nam'; did you mean "name"?
9:19: sinks[0].body: undeclared reference to 'evnt'; did you mean "event"?
10:49: sinks[1].body: + cannot be applied to (ChangedBy, string)`,
		},
		"heartbeat": {
			"watches: [{name: w, resources: [pods]}]\nsinks:\n- {name: s, console: {}, heartbeat: 1m}\n",
			`5:37: sinks[0].heartbeat: the sink takes no heartbeats: nats, webhook, and kafka with mode history do`,
		},
		"lanes of a sink that has one": {
			"watches: [{name: w, resources: [pods]}]\nsinks:\n- {name: s, object: {s3: {bucket: lake, accessKey: k, secretKey: {env: SECRET}}}, concurrency: 2}\n",
			`5:96: sinks[0].concurrency: must be 1: the batches of several lanes would overlap, and events could be delivered twice after a crash`,
		},
		"metric": {
			routes("metric:\n    name: m_total\n    labels:\n      a: metadata.nmae\n      b: |\n        metadata.name +\n          1"),
			`11:18: routes[0].metric.labels.a: undefined field 'nmae'; did you mean "name"?
13:23: routes[0].metric.labels.b: + cannot be applied to (string, int)`,
		},
		"changed": {
			routes("changed: [meaningful, spec]"),
			`8:25: routes[0].changed[1]: meaningful excludes paths`,
		},
		"resource mapping": {
			"watches:\n- name: w\n  resources:\n  - {resource: Deployment, group: apps}\n",
			`6:5: watches[0].resources[0]: "Deployment.apps" is not in lower case; write the plural as kubectl api-resources shows it, such as deployments.apps`,
		},
		"label selector, client": {
			watch("labelSelector: a in (b"),
			`6:18: watches[0].labelSelector: "a in (b" is not a label selector: unable to parse requirement: found '', expected: ',' or ')'; use the syntax of kubectl get -l, such as app=web,tier in (a, b)`,
		},
		"label selector, server": {
			watch("labelSelector: a==b=c\n  selectorSide: server"),
			`6:18: watches[0].labelSelector: "a==b=c" is not a label selector: found '=', expected: ',' or 'end of string'; use the syntax of kubectl get -l, such as app=web,tier in (a, b)`,
		},
		"field selector with two operators": {
			watch("fieldSelector: status.phase=a=b"),
			`6:18: watches[0].fieldSelector: "status.phase=a=b" is not a field selector: unexpected "="; use the syntax of kubectl get --field-selector, such as spec.nodeName=node-1`,
		},
		"field selector, client": {
			watch("fieldSelector: spec.nodeName"),
			`6:18: watches[0].fieldSelector: "spec.nodeName" is not a field selector: a term needs =, == or !=; use the syntax of kubectl get --field-selector, such as spec.nodeName=node-1`,
		},
		"field selector, server": {
			watch("fieldSelector: spec.nodeName\n  selectorSide: server"),
			`6:18: watches[0].fieldSelector: "spec.nodeName" is not a field selector: a term needs =, == or !=; use the syntax of kubectl get --field-selector, such as spec.nodeName=node-1`,
		},
		"field selector of metadata": {
			watch("fieldSelector: spec.nodeName=a,metadata.name=b\n  metadataOnly: true"),
			`6:18: watches[0].fieldSelector: cannot select by spec.nodeName, which metadataOnly leaves out; use selectorSide: server`,
		},
		"field selector of what is dropped": {
			watch("fieldSelector: spec.nodeName=a\n  drop: [spec]"),
			`6:18: watches[0].fieldSelector: cannot select by spec.nodeName, since spec is dropped; use selectorSide: server`,
		},
		"field selector of what is redacted": {
			watch("fieldSelector: spec.nodeName=a\n  redact: [spec.nodeName]"),
			`6:18: watches[0].fieldSelector: cannot select by spec.nodeName, since spec.nodeName is redacted; use selectorSide: server`,
		},
		"field selector of what a wildcard drops": {
			watch("fieldSelector: spec.nodeName=a\n  drop: [\"spec[*]\"]"),
			`6:18: watches[0].fieldSelector: cannot select by spec.nodeName, since spec[*] is dropped; use selectorSide: server`,
		},
		"label selector of what is redacted": {
			watch("labelSelector: app.example.com/tier=a,!x\n  redact: [\"metadata.labels[\\\"app.example.com/tier\\\"]\"]"),
			`6:18: watches[0].labelSelector: cannot select by label app.example.com/tier, since metadata.labels["app.example.com/tier"] is redacted; use selectorSide: server`,
		},
		"label selector of what is dropped": {
			watch("labelSelector: tier=a\n  drop: [\"metadata[*].tier\"]"),
			`6:18: watches[0].labelSelector: cannot select by label tier, since metadata[*].tier is dropped; use selectorSide: server`,
		},
		"namespaces": {
			watch("namespaces: {include: [\"[a\"], exclude: [\"\"], selector: \"a in\"}"),
			`6:26: watches[0].namespaces.include[0]: "[a" is not a namespace or glob
6:43: watches[0].namespaces.exclude[0]: "" is not a namespace or glob
6:58: watches[0].namespaces.selector: "a in" is not a label selector: unable to parse requirement: found '' expected: '('; use the syntax of kubectl get -l, such as app=web,tier in (a, b)`,
		},
		"paths": {
			watch("drop: [\"a b\", metadata.]\n  redact: [\"spec[x]\"]"),
			`6:10: watches[0].drop[0]: path "a b" at byte 0: a key with ' ' must be written as ["key"]
6:17: watches[0].drop[1]: path "metadata." at byte 8: a key is missing (write keys with dots as ["key"])
7:12: watches[0].redact[0]: path "spec[x]" at byte 4: [x] is neither [*], a number nor ["key"]`,
		},
		"an item that is dropped by number": {
			watch("drop: [\"spec.list[0]\", \"spec.list[*].a\"]\n  redact: [\"spec.list[0]\"]"),
			`6:10: watches[0].drop[0]: path "spec.list[0]" drops an array item by index, which the next item then takes: drop all items with [*], or a key of each item`,
		},
		"a route's paths": {
			routes("drop: [\"a b\", metadata]\n  redact: [\"spec[x]\", metadata.uid, \"metadata.labels[*]\"]"),
			`8:10: routes[0].drop[0]: path "a b" at byte 0: a key with ' ' must be written as ["key"]
8:17: routes[0].drop[1]: metadata.name identifies objects and cannot be removed
9:12: routes[0].redact[0]: path "spec[x]" at byte 4: [x] is neither [*], a number nor ["key"]
9:23: routes[0].redact[1]: metadata.uid identifies objects and cannot be removed`,
		},
		"identity": {
			watch("drop: [metadata, \"metadata[*]\", \"metadata[\\\"uid\\\"]\", \"[*].name\", kind, metadata.labels]\n  redact: [metadata.resourceVersion, spec, \"*\", metadata.name.x]"),
			`6:10: watches[0].drop[0]: metadata.name identifies objects and cannot be removed
6:20: watches[0].drop[1]: metadata.name identifies objects and cannot be removed
6:35: watches[0].drop[2]: metadata.uid identifies objects and cannot be removed
6:56: watches[0].drop[3]: metadata.name identifies objects and cannot be removed
6:68: watches[0].drop[4]: kind identifies objects and cannot be removed
7:12: watches[0].redact[0]: metadata.resourceVersion identifies objects and cannot be removed
7:44: watches[0].redact[2]: apiVersion identifies objects and cannot be removed`,
		},
		"redacted metadata": {
			watch("redact: [metadata.labels, metadata.annotations, metadata.finalizers, metadata.ownerReferences, metadata.managedFields, metadata.generation, metadata.creationTimestamp, \"**.labels\", \"metadata.labels[*]\", \"metadata.ownerReferences[*].name\"]"),
			`6:12: watches[0].redact[0]: metadata.labels is not text, and a hash in its place makes the object invalid: redact metadata.labels[*]
6:29: watches[0].redact[1]: metadata.annotations is not text, and a hash in its place makes the object invalid: redact metadata.annotations[*]
6:51: watches[0].redact[2]: metadata.finalizers is not text, and a hash in its place makes the object invalid: redact metadata.finalizers[*]
6:72: watches[0].redact[3]: metadata.ownerReferences is not text, and a hash in its place makes the object invalid: redact metadata.ownerReferences[*].name, or drop it
6:98: watches[0].redact[4]: metadata.managedFields is not text, and a hash in its place makes the object invalid: drop it
6:122: watches[0].redact[5]: metadata.generation is not text, and a hash in its place makes the object invalid: drop it
6:143: watches[0].redact[6]: metadata.creationTimestamp is not text, and a hash in its place makes the object invalid: drop it
6:171: watches[0].redact[7]: metadata.labels is not text, and a hash in its place makes the object invalid: redact metadata.labels[*]`,
		},
		"any depth": {
			watch("drop: [\"spec.**\"]\n  redact: [\"**.name\", \"**.env[*].value\"]"),
			`6:10: watches[0].drop[0]: path "spec.**" at byte 7: after ** comes the name of a value, such as **.value
7:12: watches[0].redact[0]: metadata.name identifies objects and cannot be removed`,
		},
		"a selector of what is dropped at any depth": {
			watch("labelSelector: tier=a\n  drop: [\"**.tier\"]"),
			`6:18: watches[0].labelSelector: cannot select by label tier, since **.tier is dropped; use selectorSide: server`,
		},
		"a route that needs what is dropped": {
			"watches: [{name: w, resources: [pods], drop: [status, \"metadata.labels\"]}]\n" + sink +
				"routes:\n- {name: a, sinks: [s], changed: [spec, status.phase, metadata.managedFields]}\n- {name: b, sinks: [s], when: 'object.spec.a == 1 && oldObject.status[\"phase\"] == \"x\"'}\n",
			`6:41: routes[0].changed[1]: status.phase is never there, since watch w drops status
6:55: routes[0].changed[2]: metadata.managedFields is never there, since watch w drops metadata.managedFields
7:31: routes[1].when: status.phase is never there, since watch w drops status`,
		},
		"an expression that needs what is dropped": {
			"watches: [{name: w, resources: [pods], drop: [status, \"metadata.labels\"]}, {name: v, resources: [nodes], metadataOnly: true}]\n" + sink +
				"routes:\n- {name: b, sinks: [s], when: 'object.metadata.name == \"a\" && oldObject.status[\"phase\"] == \"x\"'}\n- {name: c, sinks: [s], watches: [w], when: metadata.labels.app == \"x\"}\n- {name: d, sinks: [s], watches: [v], changed: [metadata.annotations, spec]}\n",
			`6:31: routes[0].when: status.phase is never there, since watch v has metadataOnly
7:45: routes[1].when: metadata.labels.app is never there, since watch w drops metadata.labels
8:71: routes[2].changed[1]: spec is never there, since watch v has metadataOnly`,
		},
		"a label that needs what is dropped": {
			"watches: [{name: w, resources: [pods], drop: [status, \"metadata.labels\"]}]\n" + sink +
				"routes:\n- name: b\n  sinks: [s]\n  metric:\n    name: m\n    labels:\n      team: metadata.labels.team\n      name: metadata.name\n      phase: 'has(object.status.phase) ? object.status.phase : \"\"'\n",
			`11:13: routes[0].metric.labels.team: metadata.labels.team is never there, since watch w drops metadata.labels`,
		},
		"expressions": {
			routes("when: object.a =="),
			`8:20: routes[0].when: Syntax error: the expression ends too early`,
		},
		"an expression that assigns": {
			routes("when: object.a = 1"),
			`8:18: routes[0].when: Syntax error: use == to compare`,
		},
		"an expression with a reserved word": {
			routes(`when: namespace == "shop"`),
			`8:9: routes[0].when: namespace is a reserved word; a field is reached through its object, such as metadata.namespace or object.spec.namespace`,
		},
		"an expression with a parenthesis too many": {
			routes("when: object.a == 1)"),
			`8:22: routes[0].when: Syntax error: unexpected ")"`,
		},
		"an expression that compares the event": {
			routes("when: event == \"added\""),
			`8:15: routes[0].when: == cannot be applied to (event, string); event is an object: did you mean a field of it, such as event.type?`,
		},
		"expression in a block": {
			routes("when: |\n    object.a == 1 &&\n      objekt.b == 2"),
			`10:7: routes[0].when: undeclared reference to 'objekt'...`,
		},
		"expression of no truth": {
			routes("when: 1 + 1"),
			`8:9: routes[0].when: ...`,
		},
		"routes": {
			routes("resources: [Pods, \"pods*\"]\n  changed: [spec., \"\", \"**.x\"]"),
			`8:15: routes[0].resources[0]: "Pods" is not in lower case; write the plural as kubectl api-resources shows it, such as deployments.apps
8:21: routes[0].resources[1]: "pods*" is not a resource; write RESOURCE[.VERSION][.GROUP], *.GROUP or *
9:13: routes[0].changed[0]: path "spec." at byte 4: a key is missing (write keys with dots as ["key"])
9:20: routes[0].changed[1]: path "" at byte 0: a key is missing (write keys with dots as ["key"])
9:24: routes[0].changed[2]: path "**.x": ** is for drop and redact`,
		},
		"excluded resources": {
			"watches:\n- {name: w, resources: [pods, deployments.apps, \"*.example.com\"], excludeResources: [pods, deployments, \"*.apps\", Secrets, widgets, \"*.example.com\"]}\n",
			`4:86: watches[0].excludeResources[0]: the watch names pods itself; excludeResources is for what its wildcards match
4:92: watches[0].excludeResources[1]: the watch names deployments.apps itself; excludeResources is for what its wildcards match
4:105: watches[0].excludeResources[2]: the watch names deployments.apps itself; excludeResources is for what its wildcards match
4:115: watches[0].excludeResources[3]: "Secrets" is not in lower case; write the plural as kubectl api-resources shows it, such as deployments.apps
4:133: watches[0].excludeResources[5]: *.example.com excludes all of *.example.com, which the watch names`,
		},
		"everything of a version is excluded": {
			"watches:\n- {name: w, resources: [\"*.v1.apps\"], excludeResources: [\"*.apps\"]}\n",
			`4:58: watches[0].excludeResources[0]: *.apps excludes all of *.v1.apps, which the watch names`,
		},
		"everything is excluded": {
			"watches:\n- {name: w, resources: [\"*\"], excludeResources: [\"*\"]}\n",
			`4:50: watches[0].excludeResources[0]: * excludes all of *, which the watch names`,
		},
		"watches that edit the same objects differently": {
			"watches:\n- {name: a, resources: [pods]}\n- {name: b, resources: [nodes, pods], redact: [spec]}\n",
			`5:32: watches[1].resources[1]: ` + overlapping("b", "a", "pods", "redact"),
		},
		"a wildcard and a name": {
			"watches:\n- {name: a, resources: [\"*\"], metadataOnly: true}\n- {name: b, resources: [pods], labelSelector: x}\n",
			`5:25: watches[1].resources[0]: ` + overlapping("b", "a", "pods", "metadataOnly"),
		},
		"two wildcards": {
			"watches:\n- {name: a, resources: [\"*\"], exposeSecrets: true}\n- {name: b, resources: [\"*\"]}\n- {name: c, resources: [\"*.apps\"], drop: [status]}\n",
			`5:25: watches[1].resources[0]: ` + overlapping("b", "a", "secrets", "exposeSecrets") + `
6:25: watches[2].resources[0]: ` + overlapping("c", "a", "*.apps", "drop") + `
6:25: watches[2].resources[0]: ` + overlapping("c", "b", "*.apps", "drop"),
		},
		"namespaces in common": {
			"watches:\n- {name: a, resources: [deployments.apps], namespaces: {include: [one, two]}}\n- {name: b, resources: [deployments.v1.apps], namespaces: {include: [two]}, keep: [metadata.managedFields], metadataOnly: true}\n",
			`5:25: watches[1].resources[0]: ` + overlapping("b", "a", "deployments.apps", "drop, metadataOnly"),
		},
		"a kind that is none": {
			"watches: [{name: w, resources: [pods]}]\nsinks: [{name: s, broken: {}}]\n",
			`4:9: sinks[0]: unknown kind of sink "broken"`,
		},
		"all at once": {
			"watches: [{name: w, resources: [A], drop: [kind]}, {name: v, resources: [B], labelSelector: \"=\"}]\n" + sink + "routes: [{name: r, sinks: [s], when: x}]\n",
			`3:33: watches[0].resources[0]: "A" is not in lower case; write the plural as kubectl api-resources shows it, such as deployments.apps
3:44: watches[0].drop[0]: kind identifies objects and cannot be removed
3:74: watches[1].resources[0]: "B" is not in lower case; write the plural as kubectl api-resources shows it, such as deployments.apps
3:93: watches[1].labelSelector: "=" is not a label selector: found '=', expected: !, identifier, or 'end of string'; use the syntax of kubectl get -l, such as app=web,tier in (a, b)
5:38: routes[0].when: undeclared reference to 'x'...`,
		},
	} {
		t.Run(name, func(t *testing.T) {
			got := messages(t, tc.text)
			// How an expression's fault is worded is not this package's business.
			want, cut := strings.CutSuffix(tc.want, "...")
			if cut && strings.HasPrefix(got, want) {
				return
			}
			if diff := cmp.Diff(want, got); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
