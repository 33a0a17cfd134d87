package main

import (
	"bytes"
	"os"
	"strings"
	"testing"
)

// TestNotices checks that the file names what is in the binary; `make generate` makes it so.
func TestNotices(t *testing.T) {
	want, err := notices(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	got, err := os.ReadFile("../../THIRD_PARTY_NOTICES")
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(got, want) {
		t.Error("THIRD_PARTY_NOTICES is stale: run make generate")
	}
	for _, text := range []string{"\nk8s.io/client-go v", "\ngithub.com/cockroachdb/pebble/v2 v", "Apache License"} {
		if !strings.Contains(string(want), text) {
			t.Errorf("the notices have no %q", text)
		}
	}
}
