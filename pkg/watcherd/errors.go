package watcherd

import (
	"errors"

	"github.com/watcherd/watcherd/internal/store"
)

// The errors that callers distinguish; the command turns each into an exit code.
var (
	// ErrConfig: the configuration is not valid. Nothing was started.
	ErrConfig = errors.New("configuration is not valid")
	// ErrStoreOpen: the store cannot be opened. It was left as it is.
	ErrStoreOpen = errors.New("the store cannot be opened")
	// ErrStore: the store failed while running. What was acknowledged is safe;
	// the rest is read again after a restart.
	ErrStore = store.ErrFailed
)
