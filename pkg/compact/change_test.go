package compact

import (
	"fmt"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/watcherd/watcherd/pkg/rawjson"
)

// encodeChanged encodes an object that by has changed, without its managed fields.
func encodeChanged(t *testing.T, c *Codec, by *rawjson.Change) *Object {
	t.Helper()
	raw := []byte(`{"kind":"A","apiVersion":"g/v1","metadata":{"name":"a","labels":{"k":"v"},"creationTimestamp":"2026-01-02T03:04:05Z"},"data":1}`)
	m, err := rawjson.Scan(raw)
	if err != nil {
		t.Fatal(err)
	}
	m.Change = by
	o, err := c.Encode(raw, &m, 7)
	if err != nil {
		t.Fatal(err)
	}
	checkObject(t, o, raw)
	return o
}

func TestLastChange(t *testing.T) {
	codec := NewCodec(NewDictionaries(nil))
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	encodeChanged(t, codec, nil) // later ones use its dictionary
	stamp := []byte(at.Format(time.RFC3339))
	for name, tc := range map[string]struct {
		by   *rawjson.Change
		want LastChange
	}{
		"not read":   {nil, LastChange{}},
		"nobody":     {&rawjson.Change{}, LastChange{}},
		"one":        {&rawjson.Change{Managers: [][]byte{[]byte("kubectl-edit")}, Operation: []byte("Update"), Time: stamp}, LastChange{"kubectl-edit", "Update", "", at}},
		"several":    {&rawjson.Change{Managers: [][]byte{[]byte("a"), []byte("b")}, Subresource: []byte("status"), Time: stamp}, LastChange{"a,b", "", "status", at}},
		"a bad time": {&rawjson.Change{Managers: [][]byte{[]byte("a")}, Time: []byte("2026-99-22T10:00:00Z")}, LastChange{}},
	} {
		t.Run(name, func(t *testing.T) {
			o := encodeChanged(t, codec, tc.by)
			if diff := cmp.Diff(tc.want, o.LastChange()); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if diff := cmp.Diff(tc.want, o.WithPosition(8).LastChange()); diff != "" {
				t.Errorf("at another position (-want +got)\n%s", diff)
			}
			if v, ok := o.Labels().Lookup("k"); !ok || v != "v" {
				t.Errorf("label %q, %t", v, ok)
			}
			plain := encodeChanged(t, codec, nil)
			if got, want := string(o.AppendBinary(nil)), string(plain.AppendBinary(nil)); got != want {
				t.Errorf("the form on disk is %q, without the change %q", got, want)
			}
			if n := o.Size() - plain.Size(); n > 8 {
				t.Errorf("the change takes %d bytes", n)
			}
		})
	}
}

// TestScaled has updates of an object that was scaled: that entry has no time.
func TestScaled(t *testing.T) {
	codec := NewCodec(NewDictionaries(nil))
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	object := func(generation int, manager string, at time.Time, scaler string) *Object {
		raw := fmt.Appendf(nil, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","uid":"u","resourceVersion":"1","generation":%d}}`, generation)
		m, err := rawjson.Scan(raw)
		if err != nil {
			t.Fatal(err)
		}
		m.Change = &rawjson.Change{Managers: [][]byte{[]byte(manager)}, Operation: []byte("Update"), Time: []byte(at.Format(time.RFC3339)), Scaler: []byte(scaler)}
		o, err := codec.Encode(raw, &m, 1)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	before, seen := object(1, "edit", at, ""), at.Add(90*time.Second+time.Millisecond)
	future, ahead := at.AddDate(70, 0, 0), at.Add(2*time.Minute)
	edited, scaled := LastChange{"edit", "Update", "", at}, LastChange{"scaler", "Update", "scale", at.Add(90 * time.Second)}
	for name, tc := range map[string]struct {
		before, after *Object
		want          LastChange
	}{
		"for the first time": {before, object(2, "edit", at, "scaler"), scaled},
		"again":              {object(2, "edit", at, "scaler"), object(3, "edit", at, "scaler"), scaled},
		"never":              {before, object(2, "edit", at, ""), edited},
		"edited afterwards":  {object(2, "edit", at, "scaler"), object(3, "edit", at.Add(time.Second), "scaler"), LastChange{"edit", "Update", "", at.Add(time.Second)}},
		"in one second":      {object(1, "edit", seen, ""), object(2, "edit", seen, "scaler"), LastChange{"edit,scaler", "Update", "", at.Add(90 * time.Second)}},
		"by the editor":      {object(1, "edit", seen, ""), object(2, "edit", seen, "edit"), LastChange{"edit", "Update", "", at.Add(90 * time.Second)}},
		"edited by another":  {object(2, "edit", at, "scaler"), object(3, "label", at, "scaler"), LastChange{"label", "Update", "", at}},
		"of the same spec":   {object(2, "edit", at, "scaler"), object(2, "edit", at, "scaler"), edited},
		"not known before":   {nil, object(2, "edit", at, "scaler"), edited},
		"managers not known": {object(1, "", time.Time{}, ""), object(2, "edit", at, "scaler"), edited},
		"of the future":      {before, object(1, "forged", future, ""), LastChange{"forged", "Update", "", future}},
		"hidden by one":      {object(1, "forged", future, ""), object(1, "forged", future, ""), LastChange{}},
		"scaled behind one":  {object(1, "forged", future, "scaler"), object(2, "forged", future, "scaler"), LastChange{}},
		"of a clock ahead":   {object(1, "edit", ahead, ""), object(1, "edit", ahead, ""), LastChange{"edit", "Update", "", ahead}},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.after.ChangedBy(tc.before, seen)); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
			if got := tc.after.LastChange(); got.Manager == "scaler" {
				t.Errorf("the newest entry is %+v", got)
			}
		})
	}
}

// More managers than the table numbers are stored with the object.
func TestManyManagers(t *testing.T) {
	codec := NewCodec(NewDictionaries(nil))
	for i := range 2 * maxTabledLabel {
		name := fmt.Sprintf("manager-%d", i)
		o := encodeChanged(t, codec, &rawjson.Change{Managers: [][]byte{[]byte(name)}, Operation: []byte("Apply"), Time: []byte("2026-11-22T10:00:00Z")})
		if got := o.LastChange(); got.Manager != name || got.Operation != "Apply" || got.Time.Unix() != 1795341600 {
			t.Fatalf("%+v", got)
		}
	}
}

// TestDeletionRequested has updates in which an object got its deletion timestamp, which no manager is noted of.
func TestDeletionRequested(t *testing.T) {
	codec := NewCodec(NewDictionaries(nil))
	at := time.Date(2026, 11, 22, 10, 0, 0, 0, time.UTC)
	object := func(generation int, deletion string, at time.Time, scaler string) *Object {
		raw := fmt.Appendf(nil, `{"apiVersion":"apps/v1","kind":"Deployment","metadata":{"name":"a","uid":"u","resourceVersion":"1","generation":%d%s}}`, generation, deletion)
		m, err := rawjson.Scan(raw)
		if err != nil {
			t.Fatal(err)
		}
		if !at.IsZero() {
			m.Change = &rawjson.Change{Managers: [][]byte{[]byte("edit")}, Operation: []byte("Update"), Time: []byte(at.Format(time.RFC3339)), Scaler: []byte(scaler)}
		}
		o, err := codec.Encode(raw, &m, 1)
		if err != nil {
			t.Fatal(err)
		}
		return o
	}
	const deletion = `,"deletionTimestamp":"2026-11-22T10:00:30Z"`
	edited := func(at time.Time) LastChange { return LastChange{"edit", "Update", "", at} }
	for name, tc := range map[string]struct {
		before, after *Object
		want          LastChange
	}{
		"requested":             {object(1, "", at, ""), object(2, deletion, at, ""), LastChange{}},
		"of one that is scaled": {object(1, "", at, "scaler"), object(2, deletion, at, "scaler"), LastChange{}},
		"after a restart":       {object(1, "", time.Time{}, ""), object(2, deletion, at, ""), LastChange{}},
		"edited as well":        {object(1, "", at, ""), object(2, deletion, at.Add(time.Second), ""), edited(at.Add(time.Second))},
		"edited afterwards":     {object(2, deletion, at, ""), object(2, deletion, at.Add(time.Second), ""), edited(at.Add(time.Second))},
		"not known before":      {nil, object(2, deletion, at, ""), edited(at)},
	} {
		t.Run(name, func(t *testing.T) {
			if diff := cmp.Diff(tc.want, tc.after.ChangedBy(tc.before, at.Add(time.Minute))); diff != "" {
				t.Errorf("(-want +got)\n%s", diff)
			}
		})
	}
}
