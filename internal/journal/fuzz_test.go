package journal

import (
	"bytes"
	"testing"

	"github.com/watcherd/watcherd/internal/store"
)

// FuzzMessage reads messages that a client without the key sends: none of them is read but those that were
// sealed. A seal has random bytes, so the input is what changes in the body.
func FuzzMessage(f *testing.F) {
	keys, err := NewKeys([]byte("a key of 16 bytes or more"))
	if err != nil {
		f.Fatal(err)
	}
	sealed := map[string][]byte{} // by header
	for _, kind := range kinds {
		entry := frame{Kind: kind, Term: 1, Replica: "a", Writer: "w", Sum: sum(after(0, 1, kind, "w", []byte("batch")))}
		headers, bodies, err := keys.parts(entry, []byte("batch"), maxHeader+4)
		if err != nil {
			f.Fatal(err)
		}
		for i, header := range headers {
			sealed[string(header)] = bodies[i]
			f.Add(string(header), []byte{})
			f.Add(string(header), []byte{0, 0, 1})
		}
	}
	f.Add(`{"format":2}`, []byte{})
	f.Add(`{"format":1,"layout":1,"kind":"batch","part":1,"parts":1}`, []byte("x"))
	f.Fuzz(func(t *testing.T, header string, change []byte) {
		body := bytes.Clone(sealed[header])
		for i, b := range change {
			if i < len(body) {
				body[i] ^= b
			} else {
				body = append(body, b)
			}
		}
		entry, part, err := keys.parse(header, body)
		if err != nil {
			return
		}
		if !bytes.Equal(sealed[header], body) {
			t.Fatalf("a message is read that was not sealed: %q", header)
		}
		_, _ = new(assembly).add(1, entry, part, store.Position{})
	})
}
