package main

import (
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

func TestMain(m *testing.M) { testcluster.Main(m) }
