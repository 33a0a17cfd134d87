package rawwatch

import (
	"context"
	"fmt"
	"strings"
	"testing"

	"k8s.io/apimachinery/pkg/runtime"
	"k8s.io/apimachinery/pkg/runtime/schema"
	"k8s.io/apimachinery/pkg/watch"

	"github.com/watcherd/watcherd/pkg/compact"
	"github.com/watcherd/watcherd/pkg/rawjson"
)

// podLine is a watch event of a pod of about 5.5 KB, a fifth of it managedFields.
func podLine(version int) string {
	var env, fields strings.Builder
	for i := range 24 {
		fmt.Fprintf(&env, `{"name":"SETTING_%d","value":"value-%d-of-the-container"},`, i, i*7919)
		fmt.Fprintf(&fields, `"f:setting%d":{".":{},"f:name":{},"f:value":{}},`, i)
	}
	var conditions strings.Builder
	for _, c := range []string{"Initialized", "Ready", "ContainersReady", "PodScheduled", "PodReadyToStartContainers"} {
		fmt.Fprintf(&conditions, `{"type":"%s","status":"True","lastProbeTime":null,"lastTransitionTime":"2026-01-02T03:04:05Z","observedGeneration":1},`, c)
	}
	return fmt.Sprintf(`{"type":"MODIFIED","object":{"kind":"Pod","apiVersion":"v1","metadata":{"name":"web-7d4b9c6f5d-x2x4z","generateName":"web-7d4b9c6f5d-",`+
		`"namespace":"production","uid":"0b8c6f1e-7a52-4d5a-9f0e-0123456789ab","resourceVersion":"%d","generation":1,"creationTimestamp":"2026-01-02T03:04:05Z",`+
		`"labels":{"app":"web","pod-template-hash":"7d4b9c6f5d","tier":"frontend"},"annotations":{"checksum/config":"%064x"},`+
		`"ownerReferences":[{"apiVersion":"apps/v1","kind":"ReplicaSet","name":"web-7d4b9c6f5d","uid":"aaaa","controller":true}],`+
		`"managedFields":[{"manager":"kubelet","operation":"Update","apiVersion":"v1","time":"2026-01-02T03:04:05Z","fieldsType":"FieldsV1","fieldsV1":{%s"f:x":{}}}]},`+
		`"spec":{"containers":[{"name":"web","image":"registry.example.com/web:1.2.3","env":[%s{"name":"LAST"}],"resources":{"limits":{"cpu":"1"}}}],"nodeName":"node-17"},`+
		`"status":{"phase":"Running","conditions":[%s{"type":"Last"}],"podIP":"10.1.2.%d"}}}`,
		version, version, fields.String(), env.String(), conditions.String(), version%250)
}

// BenchmarkEvent is what an event costs between the stream and the reflector.
func BenchmarkEvent(b *testing.B) {
	editor, err := rawjson.NewEditor(rawjson.Rule{Path: "metadata.managedFields"})
	if err != nil {
		b.Fatal(err)
	}
	codec := compact.NewCodec(compact.NewDictionaries(nil))
	s := NewSource(Config{
		GVR: schema.GroupVersionResource{Version: "v1", Resource: "pods"}, Edit: editor.AppendChange,
		Make: func(raw []byte, m *rawjson.Meta, position uint64) (runtime.Object, error) {
			return codec.Encode(raw, m, position)
		},
		Window: 4096,
	})
	ctx, cancel := context.WithCancel(b.Context())
	w := &stream{source: s, events: make(chan watch.Event)}
	done := make(chan struct{})
	go func() {
		defer close(done)
		for {
			select {
			case e := <-w.events:
				s.Ack(e.Object.(*compact.Object).Position())
			case <-ctx.Done():
				return
			}
		}
	}()
	lines := make([][]byte, 1000)
	for i := range lines {
		lines[i] = []byte(podLine(i + 1))
	}
	b.SetBytes(int64(len(lines[0])))
	b.ReportAllocs()
	n := 0
	for b.Loop() {
		if err := w.line(ctx, lines[n%len(lines)]); err != nil {
			b.Fatal(err)
		}
		n++
	}
	cancel()
	<-done
}
