package main

import (
	"os"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestDocumentIsUpToDate(t *testing.T) {
	committed, err := os.ReadFile("../../internal/admin/openapi.json")
	if err != nil {
		t.Fatal(err)
	}
	got, err := generate()
	if err != nil {
		t.Fatal(err)
	}
	if diff := cmp.Diff(string(committed), string(got)); diff != "" {
		t.Errorf("run go generate ./internal/admin (-committed +generated)\n%s", diff)
	}
}
