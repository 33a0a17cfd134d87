package dynamicfactory_test

import (
	"testing"

	"github.com/watcherd/watcherd/internal/testcluster"
)

func TestMain(m *testing.M) { testcluster.Main(m) }
