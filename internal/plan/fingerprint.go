package plan

import (
	"crypto/sha256"
	"encoding/hex"
	"encoding/json"
	"fmt"
)

// fingerprint identifies a block by its raw form. A block made by a program has
// none; then it is that of the values.
func fingerprint(raw []byte, values ...any) string {
	if raw == nil {
		raw = mustJSON(values)
	}
	sum := sha256.Sum256(raw)
	return hex.EncodeToString(sum[:8])
}

// hashOf is the fingerprint of everything a state was made of.
func hashOf(s *State) string {
	parts := []any{s.Cluster, s.KubeAPI, s.Store, s.Admin, s.ConsistencyCheck, s.Routes}
	for _, w := range s.Watches {
		parts = append(parts, "watch", w.Fingerprint)
	}
	for _, k := range s.Sinks {
		parts = append(parts, "sink", k.Fingerprint)
	}
	return fingerprint(mustJSON(parts))
}

func mustJSON(v any) []byte {
	b, err := json.Marshal(v)
	if err != nil {
		// Only a kind whose settings hold channels or functions gets here.
		panic(fmt.Sprintf("plan: fingerprint: %v", err))
	}
	return b
}
