package route

import (
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/internal/apitest"
	"github.com/watcherd/watcherd/internal/celexpr"
	"github.com/watcherd/watcherd/pkg/event"
)

const failedPod, barePod = apitest.FailedPod, apitest.BarePod

func TestWhen(t *testing.T) {
	o := newObjects(t)
	failed, bare := o.from(failedPod), o.from(barePod)
	running := o.from(strings.Replace(failedPod, `"phase":"Failed"`, `"phase":"Running"`, 1))
	updated := change(event.Updated, running, failed)
	edited := change(event.Updated, running, o.changedBy(failedPod, "kubectl-edit"))
	edited.Changed = true
	for _, tc := range []struct {
		when   string
		change *Change
		want   bool
	}{
		{`object.status.phase == "Failed"`, updated, true},
		{`oldObject.status.phase == "Failed"`, updated, false},
		{`object.status.phase != oldObject.status.phase`, updated, true},
		{`object.spec == oldObject.spec`, updated, true},
		{`object.status == oldObject.status`, updated, false},
		{`object == oldObject`, updated, false},
		{`object == object`, updated, true},
		{`object.status.conditions.exists(c, c.type == "Ready" && c.status == "False")`, updated, true},
		{`object.status.conditions.all(c, c.status == "True")`, updated, false},
		{`object.spec.containers.exists_one(c, c.image.endsWith(":2"))`, updated, true},
		{`object.spec.containers[1].name == "b" && size(object.spec.containers) == 2`, updated, true},
		{`object.spec.containers.map(c, c.name) == ["a", "b"]`, updated, true},
		{`object.spec.containers.filter(c, has(c.resources)).size() == 1`, updated, true},
		{`object.spec.priority == 9007199254740993`, updated, true},
		{`object.spec.priority == 9007199254740992`, updated, false},
		{`object.spec.ratio > 1.4 && object.spec.ratio < 2`, updated, true},
		{`object.spec.none == null && !object.spec.host`, updated, true},
		{`object.status.text == "café ☃ <&>"`, updated, true},
		{`"nodeName" in object.spec && !("x" in object.spec)`, updated, true},
		{`object.spec.exists(k, k == "ratio")`, updated, true},
		{`{"name": "a"}.name in object.spec.containers.map(c, c.name)`, updated, true},
		{`type(object) == map && type(object.spec.containers) == list`, updated, true},
		{`quantity(object.spec.containers[0].resources.limits.memory).isGreaterThan(quantity("100Mi"))`, updated, true},
		{`quantity("1") == quantity("1000m") && quantity("1Gi").compareTo(quantity("1G")) == 1`, updated, true},
		{`quantity("500m").isLessThan(quantity("1")) && quantity("2k").asInteger() == 2000 && !quantity("1.5").isInteger()`, updated, true},
		{`quantity("1500m").asApproximateFloat() == 1.5 && isQuantity("3Ki") && !isQuantity("3Kx")`, updated, true},

		{`metadata.name == "web-1" && metadata.namespace == "prod" && metadata.uid == "u-1"`, updated, true},
		{`metadata.resourceVersion == "41" && metadata.generation == 3`, updated, true},
		{`metadata.labels.app == "web" && metadata.labels["tier"] == "front" && "app" in metadata.labels`, updated, true},
		{`metadata.labels == {"tier": "front", "app": "web"} && metadata.labels.size() == 2`, updated, true},
		{`metadata.labels.all(k, metadata.labels[k] != "")`, updated, true},
		{`metadata.annotations["example.com/x"] == "y" && metadata.annotations.note == 'a "quoted" one'`, updated, true},
		{`metadata.finalizers == ["example.com/keep"] && metadata.generateName == "web-"`, updated, true},
		{`metadata.ownerReferences.exists(r, r.kind == "ReplicaSet" && r.controller)`, updated, true},
		{`metadata.creationTimestamp == timestamp("2026-01-02T03:04:05Z")`, updated, true},
		{`has(metadata.deletionTimestamp) && metadata.deletionTimestamp > metadata.creationTimestamp`, updated, true},
		{`event.time - metadata.creationTimestamp > duration("24h")`, updated, true},
		{`event.type == "updated" && event.cluster == "test"`, updated, true},
		{`resource.group == "" && resource.version == "v1" && resource.resource == "pods" && resource.kind == "Pod"`, updated, true},
		{`dyn(metadata).name == "web-1" && has(dyn(metadata).namespace)`, updated, true},

		{`object.kind == "Pod" && object.apiVersion == "v1"`, updated, true},
		{`object.metadata.name == "web-1" && object.metadata.generation == 3`, updated, true},
		{`object.metadata.creationTimestamp == "2026-01-02T03:04:05Z"`, updated, true},
		{`object.metadata.labels.app == "web" && has(object.metadata.labels.tier)`, updated, true},
		{`object.metadata.annotations.size() == 2 && object.metadata.size() == 12`, updated, true},
		{`object.metadata == oldObject.metadata`, updated, true},

		{`!has(metadata.labels) && !has(metadata.namespace) && !has(metadata.deletionTimestamp) && !has(metadata.annotations)`, change(event.Added, nil, bare), true},
		{`metadata.namespace == "" && metadata.labels.size() == 0 && metadata.annotations.size() == 0 && metadata.generation == 0`, change(event.Added, nil, bare), true},
		{`metadata.ownerReferences.exists(r, true) || metadata.finalizers.exists(f, true)`, change(event.Added, nil, bare), false},
		{`has(object.status)`, change(event.Added, nil, bare), false},
		{`has(object.metadata.labels) || has(object.metadata.namespace)`, change(event.Added, nil, bare), false},
		{`object.?status.?phase.orValue("none") == "none"`, change(event.Added, nil, bare), true},
		{`oldObject == null`, change(event.Added, nil, bare), true},
		{`oldObject == null && object.status.phase == "Failed"`, change(event.Deleted, failed, nil), true},
		{`event.type == "deleted" && metadata.name == "web-1"`, change(event.Deleted, failed, nil), true},
		{`event.type == "sync"`, change(event.Sync, nil, bare), true},

		{`event.changedBy.manager == "kubectl-edit" && event.changedBy.operation == "Update" && event.changedBy.subresource == ""`, edited, true},
		{`has(event.changedBy) && !has(event.changedBy.subresource) && event.changedBy.time == timestamp("2026-11-22T10:00:00Z")`, edited, true},
		{`dyn(event).changedBy.manager.startsWith("kubectl")`, edited, true},
		{`has(event.changedBy) || has(event.changedBy.manager) || has(event.changedBy.time)`, updated, false},
		{`event.changedBy.manager == "" && event.changedBy.operation == "" && event.changedBy.subresource == ""`, updated, true},
		{`event.changedBy.manager == "" && event.changedBy.time < event.time`, change(event.Deleted, failed, nil), true},
	} {
		r, err := Compile([]Spec{{Name: "r", When: tc.when, Sinks: []string{"s"}}})
		if err != nil {
			t.Errorf("%s: %v", tc.when, err)
			continue
		}
		got := len(r.Route(nil, tc.change)) == 1
		if s := r.Stats()[0]; got != tc.want || s.Missing+s.Errors > 0 {
			t.Errorf("%s = %t, want %t (%+v)", tc.when, got, tc.want, s)
		}
		o := tc.change.object()
		head := Head{Type: tc.change.Type, Resource: tc.change.Resource, Cluster: tc.change.Cluster, Namespace: o.GetNamespace(), Name: o.GetName()}
		if tc.change.ChangedBy != nil {
			head.Manager = tc.change.ChangedBy.Manager
		} else if tc.change.Changed {
			head.Manager = tc.change.New.LastChange().Manager
		}
		if c, faults := CompileCondition(tc.when); faults == nil && c.ReadsHead() && c.RulesOut(&head) && tc.want {
			t.Errorf("%s is true, and ruled out", tc.when)
		}
	}
}

func TestWhenErrors(t *testing.T) {
	for when, want := range map[string]SpecError{
		`objct.status == 1`:                             {Line: 1, Column: 1, Msg: `undeclared reference to 'objct'; did you mean "object"?`},
		`metadata.name == "a" && foo`:                   {Line: 1, Column: 25, Msg: "undeclared reference to 'foo'"},
		`metadata.nmae == "a"`:                          {Line: 1, Column: 9, Msg: `undefined field 'nmae'; did you mean "name"?`},
		"event.type == 'added' &&\n  event.kind == 'x'": {Line: 2, Column: 8, Msg: "undefined field 'kind'"},
		`event.sequence > 1`:                            {Line: 1, Column: 6, Msg: "undefined field 'sequence'"},
		`object.name.startWith("a")`:                    {Line: 1, Column: 22, Msg: `undeclared reference to 'startWith'; did you mean "startsWith"?`},
		`object.items.exist(x, x == 1)`:                 {Line: 1, Column: 19, Msg: `undeclared reference to 'exist'; did you mean "exists"?`},
		`Event.type == "added"`:                         {Line: 1, Column: 1, Msg: `undeclared reference to 'Event'; did you mean "event"?`},
		`event.unrelated == "a"`:                        {Line: 1, Column: 6, Msg: `undefined field 'unrelated'`},
		`metadata.name`:                                 {Line: 1, Column: 1, Msg: "the expression must be a bool, not string"},
		`1 + 1`:                                         {Line: 1, Column: 1, Msg: "the expression must be a bool, not int"},
		`object.x ==`:                                   {Line: 1, Column: 12, Msg: "Syntax error"},
		`metadata.generation == "1"`:                    {Line: 1, Column: 21, Msg: "== cannot be applied to (int, string)"},
		`metadata.name.matches("(")`:                    {Line: 1, Column: 1, Msg: "error parsing regexp"},
		`object.a.matches(object.b)`:                    {Line: 1, Column: 17, Msg: "needs a literal pattern"},
		`object.a.replace("a", "b") == ""`:              {Line: 1, Column: 17, Msg: "not supported"},
		`metadata.name == "a" || event.type == "ADDED"`: {Line: 1, Column: 36, Msg: `never "ADDED"`},
		`"gap" != event.type`:                           {Line: 1, Column: 7, Msg: `never "gap"`},
		`event.type in ["added", "modified"]`:           {Line: 1, Column: 12, Msg: `never "modified"`},
		`nosuch(object)`:                                {Line: 1, Column: 7, Msg: "undeclared reference to 'nosuch'"},
	} {
		_, err := Compile([]Spec{{Name: "fine", Sinks: []string{"s"}}, {Name: "faulty", When: when, Sinks: []string{"s"}}})
		var got *SpecError
		if !errors.As(err, &got) {
			t.Errorf("%s: no SpecError in %v", when, err)
			continue
		}
		if got.Index != 1 || got.Route != "faulty" || got.Path != "when" || got.Line != want.Line || got.Column != want.Column || !strings.Contains(got.Msg, want.Msg) {
			t.Errorf("%.60s: got %+v, want %+v", when, got, want)
		}
	}
}

func TestWhenBounds(t *testing.T) {
	for _, when := range []string{
		`object.x == "` + strings.Repeat("x", celexpr.MaxExpression) + `"`,
		strings.Repeat("(", 1000) + "true" + strings.Repeat(")", 1000),
		strings.Repeat("[", 1000) + strings.Repeat("]", 1000) + " == []",
		"object" + strings.Repeat(".a", 1000) + " == 1",
	} {
		if _, err := Compile([]Spec{{Name: "r", When: when, Sinks: []string{"s"}}}); err == nil {
			t.Errorf("%.20s... of %d characters compiles", when, len(when))
		}
	}
}

func TestOnError(t *testing.T) {
	o := newObjects(t)
	c := change(event.Added, nil, o.from(barePod))
	for _, tc := range []struct {
		when            string
		policy          OnError
		match           bool
		missing, errors uint64
	}{
		{`object.status.phase == "Failed"`, "", false, 1, 0},
		{`object.status.phase == "Failed"`, OnErrorDrop, false, 1, 0},
		{`object.status.phase == "Failed"`, OnErrorPass, true, 1, 0},
		{`oldObject.status.phase == "Failed"`, "", false, 1, 0},
		{`oldObject.metadata.name == "x"`, "", false, 1, 0},
		{`metadata.labels.app == "x"`, "", false, 1, 0},
		{`object.metadata.labels.app == "x"`, "", false, 1, 0},
		{`metadata.deletionTimestamp < event.time`, "", false, 1, 0},
		{`metadata.finalizers[0] == "x"`, "", false, 1, 0},
		{`object.metadata.name.size.x == 1`, "", false, 1, 0},
		{`object.status.phase == "Failed" || metadata.name == "bare"`, "", true, 0, 0},
		{`object.kind`, "", false, 0, 1},
		{`object.kind`, OnErrorDrop, false, 0, 1},
		{`object.kind > 3`, "", false, 0, 1},
		{`int(object.kind) > 3`, OnErrorDrop, false, 0, 1},
		{`timestamp(object.kind) > event.time`, OnErrorPass, true, 0, 1},
		{`quantity(object.kind) == quantity("1")`, "", false, 0, 1},
		{`quantity("1.5").asInteger() == 1`, "", false, 0, 1},
	} {
		t.Run(fmt.Sprintf("%s/%s", tc.policy, tc.when), func(t *testing.T) {
			r, err := Compile([]Spec{{Name: "r", When: tc.when, OnError: tc.policy, Sinks: []string{"s"}}})
			if err != nil {
				t.Fatal(err)
			}
			told := 0
			r.OnError(func(route string, err error) {
				told++
				if route != "r" || err == nil {
					t.Errorf("told of %q, %v", route, err)
				}
			})
			for range 3 {
				if got := len(r.Route(nil, c)) == 1; got != tc.match {
					t.Errorf("matches: %t, want %t", got, tc.match)
				}
			}
			s := r.Stats()[0]
			if s.Missing != 3*tc.missing || s.Errors != 3*tc.errors || (s.FirstError != nil) != (tc.errors > 0) || told != int(tc.errors) {
				t.Errorf("stats %+v, told %d times", s, told)
			}
			if s.Matched+s.Filtered != 3 {
				t.Errorf("%d matched and %d filtered of 3", s.Matched, s.Filtered)
			}
		})
	}
}

// An error may quote any value of the object; neither logs nor status should hold a
// megabyte of one.
func TestErrorsAreShort(t *testing.T) {
	o := newObjects(t)
	r, err := Compile([]Spec{{Name: "r", When: `timestamp(object.big) > event.time`, Sinks: []string{"s"}}})
	if err != nil {
		t.Fatal(err)
	}
	r.Route(nil, change(event.Added, nil, o.from(`{"kind":"Pod","apiVersion":"v1","metadata":{"name":"a"},"big":"`+strings.Repeat("é", 1<<19)+`"}`)))
	if err := r.Stats()[0].FirstError; err == nil || len(err.Error()) > celexpr.MaxError+3 {
		t.Errorf("error of %d bytes", len(err.Error()))
	}
}

// What an expression does not look at is not inflated or decoded.
func TestLaziness(t *testing.T) {
	o := newObjects(t)
	x, err := newExpressions(defaultLimits())
	if err != nil {
		t.Fatal(err)
	}
	for _, tc := range []struct {
		when      string
		needsBody bool
		inflated  bool
	}{
		{`metadata.name == "x"`, false, false},
		{`metadata.labels.app == "web" && metadata.creationTimestamp < event.time`, false, false},
		{`metadata.labels.exists(k, k == "app")`, false, false},
		{`object.metadata.namespace == "prod" && object.kind == "Pod"`, false, false},
		{`object.metadata.labels["app"] == "web"`, false, false},
		{`has(object.metadata.labels.app)`, false, false},
		{`event.type == "added" && resource.kind == "Pod"`, false, false},
		{`oldObject == null`, true, false},
		{`metadata.name == "other" && object.status.phase == "Failed"`, true, false},
		{`object.status.phase == "Failed"`, true, true},
		{`metadata.annotations.note == ""`, true, true},
		{`object.metadata.creationTimestamp != ""`, false, true},
		{`["a"].exists(object, object == "a")`, true, false},
	} {
		c, faults := x.compile(tc.when, isCondition)
		if faults != nil {
			t.Errorf("%s: %v", tc.when, faults)
			continue
		}
		e := newEvaluation(x.views)
		e.reset(change(event.Added, nil, o.from(failedPod)), 0)
		if _, _, err := c.eval(e); err != nil {
			t.Errorf("%s: %v", tc.when, err)
		}
		inflated, decoded := e.object.Loaded()
		if c.inflate != tc.needsBody || inflated != tc.inflated {
			t.Errorf("%s: may inflate %t, want %t; did %t, want %t", tc.when, c.inflate, tc.needsBody, inflated, tc.inflated)
		}
		if decoded {
			t.Errorf("%s decodes the whole object", tc.when)
		}
	}
}

// No text makes compiling or evaluating panic, and what compiles is bounded.
func FuzzWhen(f *testing.F) {
	for _, when := range []string{
		`object.status.phase == "Failed"`, `metadata.labels.app in ["a", "b"]`, `object.a.exists(x, x.y == 1)`, `quantity("1").isLessThan(quantity(object.q))`,
		`has(object.a.b) ? object.a.b : false`, `cel.bind(x, object.a, x == x)`, `object.?a.?b.orValue(true)`, `event.time > timestamp("2020-01-01T00:00:00Z")`,
		`object.list.exists(i, v, i == v.n)`, `object.list.sortBy(a, a.n)[0].n == 0`, `ip("10.0.0.1") in object`, "\x00", `((((`, " ", "\n", `"\u{110000}"`, `'''a`,
	} {
		f.Add(when)
	}
	o := newObjects(f)
	obj, old := o.from(failedPod), o.from(hugeObject(1000, 50))
	x, err := newExpressions(celexpr.Limits{Cost: 20_000, Memory: 1 << 20})
	if err != nil {
		f.Fatal(err)
	}
	f.Fuzz(func(t *testing.T, when string) {
		c, faults := x.compile(when, isCondition)
		if (c == nil) == (len(faults) == 0) {
			t.Fatalf("neither compiled nor refused, or both: %v", faults)
		}
		for _, fault := range faults {
			if fault.Line < 1 || fault.Column < 1 || fault.Msg == "" {
				t.Errorf("fault %+v", fault)
			}
		}
		if c == nil {
			return
		}
		e := newEvaluation(x.views)
		e.reset(change(event.Updated, old, obj), 0)
		_, missing, err := c.eval(e)
		if missing && err == nil {
			t.Error("missing without an error")
		}
		if err != nil && strings.HasPrefix(err.Error(), "internal error") {
			t.Error(err)
		}
		if c, faults := CompileCondition(when); len(faults) == 0 && c.ReadsHead() {
			changed := change(event.Updated, old, obj)
			head := Head{Type: changed.Type, Resource: changed.Resource, Cluster: changed.Cluster, Namespace: obj.GetNamespace(), Name: obj.GetName()}
			if c.RulesOut(&head) {
				if is, _, _ := c.Match(changed); is {
					t.Error("the headline rules out what the expression is true of")
				}
			}
		}
	})
}

// TestHeads rules out changes by what their headlines have, and only those on which the
// expression is false.
func TestHeads(t *testing.T) {
	head := Head{Type: event.Updated, Resource: event.Resource{Version: "v1", Resource: "pods", Kind: "Pod"}, Cluster: "c", Namespace: "prod", Name: "web", Manager: "kubelet"}
	for expression, want := range map[string]bool{
		`event.type == "deleted"`:                                                                true,
		`event.type == "updated"`:                                                                false,
		`event.type == "deleted" && object.spec.a == 1`:                                          true,
		`object.spec.a == 1 && event.type == "deleted"`:                                          true,
		`object.spec.a == 1 || event.type == "deleted"`:                                          false,
		`metadata.namespace == "dev" && object.metadata.labels["a"] == "b"`:                      true,
		`metadata.namespace == "prod" && metadata.name.startsWith("api")`:                        true,
		`metadata.namespace == "prod" && metadata.name == "web"`:                                 false,
		`metadata.labels["a"] == "b"`:                                                            false,
		`has(metadata.deletionTimestamp)`:                                                        false,
		`dyn(metadata).labels.a == "b" && metadata.uid == ""`:                                    false,
		`resource.resource == "nodes"`:                                                           true,
		`event.changedBy.manager == "kubectl"`:                                                   true,
		`event.changedBy.operation == "Apply"`:                                                   false,
		`event.changedBy.manager == "kubectl" && event.time > timestamp("2026-01-01T00:00:00Z")`: true,
		`event.time > timestamp("2036-01-01T00:00:00Z")`:                                         false,
		`has(event.changedBy)`:                                                                   false,
		`object.kind == "Node"`:                                                                  false,
		`!has(oldObject.x) && event.cluster == "other"`:                                          true,
		`event.type == "deleted" ? true : object.x`:                                              false,
		`event.type == "deleted" && metadata.labels.exists(k, k == "a")`:                         false, // loops are left out
		`event.type == "deleted" && lists.range(1000000).size() == 0`:                            false, // what builds values, too
	} {
		c, faults := CompileCondition(expression)
		if faults != nil {
			t.Fatal(expression, faults)
		}
		if got := c.ReadsHead() && c.RulesOut(&head); got != want {
			t.Errorf("%s: ruled out %t, want %t", expression, got, want)
		}
	}
}
