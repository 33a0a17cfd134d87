package dynamicfactory

import (
	"errors"

	"github.com/watcherd/watcherd/pkg/dynamicfactory/internal/rawwatch"
)

var (
	// ErrShutdown says that the factory has been shut down.
	ErrShutdown = errors.New("dynamicfactory: the factory is shut down")
	// ErrNoClient says that the factory was made without a client.
	ErrNoClient = errors.New("dynamicfactory: no client")
	// ErrNoHandler says that a subscription has no handler.
	ErrNoHandler = errors.New("dynamicfactory: no handler")
	// ErrNotRaw says that something needs a factory made by NewForConfig.
	ErrNotRaw = errors.New("dynamicfactory: only a factory made by NewForConfig can do that")
	// ErrStopped says that a subscription's informer has stopped.
	ErrStopped = rawwatch.ErrStopped
	// ErrForeignCluster says that the API server belongs to another cluster than the
	// state to be resumed. Informers then neither list nor resume, but go on asking.
	ErrForeignCluster = rawwatch.ErrForeign
)

// KeyError says that nothing can be watched under a key.
type KeyError struct {
	Key Key
	Err error
}

func (e *KeyError) Error() string { return "dynamicfactory: " + e.Key.String() + ": " + e.Err.Error() }

func (e *KeyError) Unwrap() error { return e.Err }
