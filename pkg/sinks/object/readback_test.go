package object

import (
	"bytes"
	"fmt"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"
)

// TestHostileObject: who may write into the bucket has no say in how many ids are kept.
func TestHostileObject(t *testing.T) {
	for name, line := range map[string]func(i int) string{
		"many": func(i int) string { return fmt.Sprintf(`{"id":"%08d"}`, i) },
		"long": func(i int) string { return fmt.Sprintf(`{"id":"%s%d"}`, strings.Repeat("x", 1<<20), i) },
	} {
		var content bytes.Buffer
		z, err := zstd.NewWriter(&content)
		if err != nil {
			t.Fatal(err)
		}
		for i, size := 0, 0; size < 64<<20 && i < 1<<20; i++ {
			n, err := fmt.Fprintln(z, line(i))
			if err != nil {
				t.Fatal(err)
			}
			size += n
		}
		if err := z.Close(); err != nil {
			t.Fatal(err)
		}
		ids := map[string]struct{}{}
		err = decode(t.Context(), content.Bytes(), ids)
		kept := 0
		for id := range ids {
			kept += len(id)
		}
		if len(ids) > maxIDs || kept > maxIDs*8 {
			t.Errorf("%s: an object of %d bytes has %d ids of %d bytes kept: %v", name, content.Len(), len(ids), kept, err)
		}
	}
}
