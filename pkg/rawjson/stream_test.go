package rawjson

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"testing"
	"testing/iotest"

	kjson "sigs.k8s.io/json"

	"github.com/watcherd/watcherd/internal/apitest"
)

func TestSplitWatchLine(t *testing.T) {
	for line, want := range map[string][2]string{
		`{"type":"ADDED","object":{"a":1}}` + "\n": {"ADDED", `{"a":1}`},
		`{"type":"MODIFIED","object":{}}`:          {"MODIFIED", `{}`},
		`{"type":"DELETED","object":{}}` + "\r\n":  {"DELETED", `{}`},
		`{"type":"BOOKMARK","object":{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12"}}}`: {"BOOKMARK", `{"kind":"Pod","apiVersion":"v1","metadata":{"resourceVersion":"12"}}`},
		`{"type":"ERROR","object":{"kind":"Status","code":410}}`:                                            {"ERROR", `{"kind":"Status","code":410}`},
		`{"object":{"a":1},"type":"ADDED"}`:                                                                 {"ADDED", `{"a":1}`},
		` { "type" : "ADDED" , "object" : { "a" : 1 } } `:                                                   {"ADDED", `{ "a" : 1 }`},
		`{"\u0074ype":"\u0041DDED","object":{}}`:                                                            {"ADDED", `{}`},
		`{"type":"ADDED","object":{"a":1},"more":true}`:                                                     {"ADDED", `{"a":1}`},
		`{"type":"LATER","object":{}}`:                                                                      {"LATER", `{}`},
		`{"type":"later","object":{}}`:                                                                      {"later", `{}`},
	} {
		typ, object, err := SplitWatchLine([]byte(line))
		if err != nil || typ != want[0] || string(object) != want[1] {
			t.Errorf("%s: got %s, %s, %v", line, typ, object, err)
		}
	}
	for _, line := range []string{
		``, "\n", `{}`, `{"type":"ADDED"}`, `{"object":{}}`, `{"type":"","object":{}}`, `{"type":1,"object":{}}`, `{"type":"ADDED","object":null}`,
		`{"type":"ADDED","object":[]}`, `{"type":"ADDED","object":{}`, `{"type":"ADDED","object":{"a":1}`, `{"type":"ADDED","object":{}}}x`, `[]`, `{"type":"ADDED","object":`,
	} {
		if typ, object, err := SplitWatchLine([]byte(line)); err == nil {
			t.Errorf("%s: got %s, %s", line, typ, object)
		}
	}
}

// TestSplitWatchLineLeavesTheObject shows what the fast path leaves to Scan: it never makes a valid object of a line that
// has none.
func TestSplitWatchLineLeavesTheObject(t *testing.T) {
	for _, line := range []string{`{"type":"ADDED","object":{"a":}}`, `{"type":"ADDED","object":{},"more":{}}`, `{"type":"ADDED","object":{}}}`} {
		_, object, err := SplitWatchLine([]byte(line))
		if err != nil {
			continue
		}
		if _, err := Scan(object); err == nil {
			t.Errorf("%s: Scan took %s", line, object)
		}
	}
}

func FuzzSplitWatchLine(f *testing.F) {
	f.Add([]byte(`{"type":"ADDED","object":{"a":{}}}` + "\n"))
	f.Add([]byte(`{"object":{"a":1},"type":"\u0041"}`))
	f.Add([]byte(`{"type":"ADDED","object":{},"more":{}}`))
	f.Fuzz(func(t *testing.T, line []byte) {
		var want struct {
			Type   *string         `json:"type"`
			Object json.RawMessage `json:"object"`
		}
		wantErr := kjson.UnmarshalCaseSensitivePreserveInts(line, &want)
		typ, object, err := SplitWatchLine(line)
		if err == nil {
			if _, scanErr := Scan(object); scanErr != nil {
				if _, syntax := errors.AsType[*SyntaxError](scanErr); syntax {
					return // an error all the same: the line's or the object's
				}
			}
			if !json.Valid(line) {
				t.Fatalf("%q: took what is not valid", line)
			}
			if wantErr == nil && want.Type != nil && (typ != *want.Type || !bytes.Equal(object, want.Object)) {
				t.Errorf("%q: got %q, %q, want %q, %q", line, typ, object, *want.Type, want.Object)
			}
			return
		}
		if wantErr == nil && want.Type != nil && *want.Type != "" && bytes.HasPrefix(want.Object, []byte("{")) {
			t.Errorf("%q: %v", line, err)
		}
	})
}

const listHead = `{"kind":"PodList","apiVersion":"v1","metadata":{"resourceVersion":"12","continue":"next","remainingItemCount":7},"items":[`

func collect(r io.Reader) (items []string, meta ListMeta, err error) {
	meta, err = ScanList(r, func(raw []byte) error {
		items = append(items, string(raw))
		return nil
	})
	return items, meta, err
}

func TestScanList(t *testing.T) {
	pods := apitest.NewPods(1)
	var many []string
	for range 40 {
		many = append(many, string(apitest.ListItem(pods.Next())))
	}
	huge := []string{`{"a":1}`, `{"data":"` + strings.Repeat("x", 3<<20) + `"}`, `{"b":2}`}
	for name, test := range map[string]struct {
		list  string
		items []string
	}{
		"usual":          {listHead + strings.Join(many, ",") + "]}\n", many},
		"metadata last":  {`{"items":[{"a":1}],"metadata":{"remainingItemCount":7,"continue":"next","x":[{}],"resourceVersion":"12"},"apiVersion":"v1","kind":"PodList"}`, []string{`{"a":1}`}},
		"white space":    {` { "kind" : "PodList" , "apiVersion":"v1", "items" : [ {"a" : 1} , {} ] , "metadata" : { "resourceVersion":"12" , "continue":"next","remainingItemCount": 7 } } `, []string{`{"a" : 1}`, `{}`}},
		"escaped keys":   {strings.Replace(listHead, `"items"`, `"it\u0065ms"`, 1) + `{}]}`, []string{`{}`}},
		"null items":     {strings.TrimSuffix(listHead, "[") + "null}", nil},
		"no items":       {listHead + " ]}", nil},
		"an item of 3MB": {listHead + strings.Join(huge, ",") + "]}", huge},
	} {
		readers := map[string]io.Reader{"whole": strings.NewReader(test.list), "with its end": iotest.DataErrReader(strings.NewReader(test.list)), "halves": iotest.HalfReader(strings.NewReader(test.list))}
		if len(test.list) < 1000 {
			readers["bytes"] = iotest.OneByteReader(strings.NewReader(test.list))
		}
		for how, r := range readers {
			items, meta, err := collect(r)
			if err != nil || !slices.Equal(items, test.items) {
				t.Errorf("%s, read as %s: %d items, %v", name, how, len(items), err)
			}
			if meta.Kind != "PodList" || meta.APIVersion != "v1" || meta.ResourceVersion != "12" || meta.Continue != "next" || meta.RemainingItemCount == nil || *meta.RemainingItemCount != 7 {
				t.Errorf("%s, read as %s: %+v", name, how, meta)
			}
		}
	}
}

// TestScanListBreaksOff cuts a list everywhere: no part of it may pass for a whole one.
func TestScanListBreaksOff(t *testing.T) {
	list := listHead + `{"a":1},{"b":[true,-1.5e3]}]}`
	for n := range list {
		_, _, err := collect(strings.NewReader(list[:n]))
		var syntax *SyntaxError
		if !errors.As(err, &syntax) || syntax.Offset != n {
			t.Errorf("%s: %v, want a syntax error at its end", list[:n], err)
		}
	}
}

func TestScanListErrors(t *testing.T) {
	for _, list := range []string{
		`[]`, `{"items":[1]}`, `{"items":{}}`, `{"items":[{}{}]}`, `{"items":[{},]}`, `{"items":[{}]}x`, `{"items":[]"kind":""}`, `{1:2}`, `{"kind":2,"items":[]}`,
		`{"metadata":{"resourceVersion":3},"items":[]}`, `{"metadata":{"remainingItemCount":"3"},"items":[]}`, `{"metadata":[],"items":[]}`, `{"items" []}`, `{"items":[{}],}`,
	} {
		if _, _, err := collect(strings.NewReader(list)); err == nil || errors.Is(err, ErrNoList) {
			t.Errorf("%s: %v", list, err)
		}
	}
	_, meta, err := collect(strings.NewReader(`{"kind":"Status","apiVersion":"v1","metadata":null,"code":410}`))
	if !errors.Is(err, ErrNoList) || meta.Kind != "Status" {
		t.Errorf("a Status: %+v, %v", meta, err)
	}
	if _, _, err = collect(strings.NewReader(`{}`)); !errors.Is(err, ErrNoList) {
		t.Errorf("nothing: %v", err)
	}
	broken := errors.New("connection reset")
	items, _, err := collect(io.MultiReader(strings.NewReader(listHead+`{"a":1},{"b"`), iotest.ErrReader(broken)))
	if !errors.Is(err, broken) || len(items) != 1 {
		t.Errorf("a broken connection: %d items, %v", len(items), err)
	}
	if _, _, err = collect(silent{}); !errors.Is(err, io.ErrNoProgress) {
		t.Errorf("a reader that reads nothing: %v", err)
	}
	enough := errors.New("enough")
	calls := 0
	_, err = ScanList(strings.NewReader(listHead+`{},{},{}]}`), func([]byte) error {
		calls++
		return enough
	})
	if !errors.Is(err, enough) || calls != 1 {
		t.Errorf("an error of item: %d calls, %v", calls, err)
	}
}

type silent struct{}

func (silent) Read([]byte) (int, error) { return 0, nil }

// TestScanListHoldsOneItem reads a long list: what is held does not grow with it.
func TestScanListHoldsOneItem(t *testing.T) {
	pod := string(apitest.NewPods(1).Next())
	list := io.MultiReader(strings.NewReader(listHead+pod), strings.NewReader(strings.Repeat(","+pod, 2000)), strings.NewReader("]}"))
	s := listScanner{r: list, buf: make([]byte, 0, listBuffer), item: func([]byte) error { return nil }}
	if err := s.list(); err != nil {
		t.Fatal(err)
	}
	if cap(s.buf) > 2*listBuffer {
		t.Errorf("the buffer grew to %d bytes", cap(s.buf))
	}
}

func FuzzScanList(f *testing.F) {
	f.Add([]byte(listHead+`{"a":1},{}]}`), 7)
	f.Add([]byte(`{"items":null,"metadata":{"remainingItemCount":null}}`), 1)
	f.Fuzz(func(t *testing.T, list []byte, chunk int) {
		var want struct {
			Kind     string `json:"kind"`
			Metadata struct {
				ResourceVersion string `json:"resourceVersion"`
			} `json:"metadata"`
			Items []json.RawMessage `json:"items"`
		}
		wantErr := kjson.UnmarshalCaseSensitivePreserveInts(list, &want)
		items, meta, err := collect(&chunks{list, max(1, chunk%100)})
		if err == nil && !json.Valid(list) {
			t.Fatalf("%q: took what is not valid", list)
		}
		if err != nil || wantErr != nil || bytes.Count(list, []byte("items"))+bytes.Count(list, []byte(`\u`)) > 1 {
			return
		}
		if fmt.Sprintf("%s", items) != fmt.Sprintf("%s", want.Items) {
			t.Errorf("%q: got %s, want %s", list, items, want.Items)
		}
		if _, plain, _ := decodeMeta(list); plain && (meta.Kind != want.Kind || meta.ResourceVersion != want.Metadata.ResourceVersion) {
			t.Errorf("%q: got %+v, want %+v", list, meta, want)
		}
	})
}

// chunks reads a few bytes at a time.
type chunks struct {
	rest []byte
	size int
}

func (c *chunks) Read(p []byte) (int, error) {
	if len(c.rest) == 0 {
		return 0, io.EOF
	}
	n := copy(p[:min(len(p), c.size)], c.rest)
	c.rest = c.rest[n:]
	return n, nil
}

// What a watch accepts a list accepts too, or one object makes every list fail.
func TestDepthOfAnItem(t *testing.T) {
	for _, n := range []int{9990, 9996, 9998, 9999, 10_001} {
		raw := `{"metadata":{"name":"a"},"spec":` + strings.Repeat(`{"a":`, n) + `1` + strings.Repeat(`}`, n) + `}`
		_, watchErr := Scan([]byte(raw))
		_, listErr := ScanList(strings.NewReader(`{"items":[`+raw+`]}`), func([]byte) error { return nil })
		if (watchErr == nil) != (listErr == nil) {
			t.Errorf("%d levels: a watch gives %v, a list %v", n, watchErr, listErr)
		}
	}
}
