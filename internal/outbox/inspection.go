package outbox

import (
	"io"

	"github.com/watcherd/watcherd/internal/outbox/inspect"
)

// Veil is [inspect.Veil].
type Veil = inspect.Veil

// Shown is [inspect.Shown].
type Shown = inspect.Shown

// ShownKind is [inspect.ShownKind].
type ShownKind = inspect.ShownKind

// The kinds of what is shown.
const (
	ShownRecord = inspect.ShownRecord
	ShownState  = inspect.ShownState
	ShownMeta   = inspect.ShownMeta
)

// Check is [inspect.Check].
func Check(dir string) (inspect.Report, error) { return inspect.Check(dir) }

// Export is [inspect.Export].
func Export(dir string, w io.Writer, veil Veil) error { return inspect.Export(dir, w, veil) }
