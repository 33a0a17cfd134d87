package route

import (
	"testing"

	"github.com/watcherd/watcherd/internal/celjson"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

func TestDiffers(t *testing.T) {
	for _, tc := range []struct {
		path, a, b string
		want       bool
	}{
		{`spec`, `{"spec":{"a":1,"b":2}}`, `{"spec":{"b":2,"a":1},"status":{}}`, false},
		{`spec`, `{"spec":{"a":1}}`, `{"spec":{"a":2}}`, true},
		{`spec`, `{"spec":{"a":1}}`, `{}`, true},
		{`spec`, `{}`, `{"spec":null}`, true},
		{`spec`, `{}`, `{"status":1}`, false},
		{`spec.a`, `{"spec":{"a":1,"b":1}}`, `{"spec":{"a":1,"b":2}}`, false},
		{`spec.a`, `{"spec":{}}`, `{}`, false},
		{`spec.a`, `{"spec":1}`, `{"spec":[]}`, false},
		{`spec.a`, `{"spec":{"a":"x"}}`, `{"spec":{"a":"\u0078"}}`, false},
		{`spec.a`, `{"spec":{"a":9007199254740993}}`, `{"spec":{"a":9007199254740992}}`, true},
		{`spec.a`, `{"spec":{"a":-1}}`, `{"spec":{"a":1}}`, true},
		{`metadata.annotations["a.b/c"]`, `{"metadata":{"annotations":{"a.b/c":"1","d":"1"}}}`, `{"metadata":{"annotations":{"a.b/c":"1","d":"2"}}}`, false},
		{`metadata.annotations["a.b/c"]`, `{"metadata":{"annotations":{"a.b/c":"1"}}}`, `{"metadata":{"annotations":{"a.b/c":"2"}}}`, true},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"},{"image":"b"}]}}`, `{"spec":{"c":[{"image":"a","x":1},{"image":"b"}]}}`, false},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"},{"image":"b"}]}}`, `{"spec":{"c":[{"image":"a"},{"image":"c"}]}}`, true},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"},{}]}}`, `{"spec":{"c":[{},{"image":"a"}]}}`, true},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"}]}}`, `{"spec":{"c":[{"image":"a"},{"image":"b"}]}}`, true},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"},{"image":"b"}]}}`, `{"spec":{"c":[{"image":"a"}]}}`, true},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"},{}]}}`, `{"spec":{"c":[{"image":"a"}]}}`, false},
		{`spec.c[*].image`, `{"spec":{"c":[{"image":"a"}]}}`, `{"spec":{}}`, true},
		{`spec.c[1].image`, `{"spec":{"c":[{"image":"a"},{"image":"b"}]}}`, `{"spec":{"c":[{"image":"x"},{"image":"b"}]}}`, false},
		{`data[*]`, `{"data":{"a":"1","b":"1"}}`, `{"data":{"b":"1","a":"1"}}`, false},
		{`data[*]`, `{"data":{"a":"1"}}`, `{"data":{"b":"1"}}`, true},
		{`data.*`, `{"data":{"a":"1"}}`, `{"data":["1"]}`, true},
		{`data.*.x[*]`, `{"data":{"a":{"x":[1,2]},"b":{"y":1}}}`, `{"data":{"b":{"y":2},"a":{"x":[1,2]}}}`, false},
		{`data.*.x[*]`, `{"data":{"a":{"x":[1,2]}}}`, `{"data":{"a":{"x":[2,1]}}}`, true},
		{`*`, `{"a":1}`, `{"a":1,"b":2}`, true},
	} {
		p, err := rawjson.ParsePath(tc.path)
		if err != nil {
			t.Fatal(err)
		}
		c, err := parseChanged(tc.path)
		if err != nil {
			t.Fatal(err)
		}
		for _, pair := range [][2]string{{tc.a, tc.b}, {tc.b, tc.a}} {
			a, b := []byte(pair[0]), []byte(pair[1])
			if got := differs(a, b, p); got != tc.want {
				t.Errorf("%s of %s and %s differs: %t", tc.path, a, b, got)
			}
			if got := c.differs(celjson.NewObject(a), celjson.NewObject(b)); got != tc.want {
				t.Errorf("%s of %s and %s differs on the way down: %t", tc.path, a, b, got)
			}
		}
	}
}
