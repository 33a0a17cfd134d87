package watcherd

import (
	"errors"
	"fmt"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/internal/replica"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// State is a checked configuration, ready for one Run, which changes it. Callers outside this
// module treat it as opaque.
type State = plan.State

// Journal is a kind of journal, of which jetstream.Journal of pkg/watcherd/jetstream is one. Callers outside
// this module treat it as opaque.
type Journal = replica.Opener

// Load reads and checks a configuration file without starting anything; see
// [Options.State]. Its errors wrap [ErrConfig] and name file, line and key.
func Load(file string, kinds sinks.Kinds) (*State, error) {
	return LoadWithin(file, kinds, config.Policy{})
}

// LoadWithin is Load of a file that may ask for no more than the policy allows.
func LoadWithin(file string, kinds sinks.Kinds, policy config.Policy) (*State, error) {
	cfg, err := config.Load(file, Blocks(kinds))
	return compile(cfg, err, policy)
}

// unreadableError is the [ErrConfig] of a file that cannot be read.
type unreadableError struct{ error }

func (e *unreadableError) Unwrap() []error { return []error{ErrConfig, e.error} }

// parse is LoadWithin of a file that has been read.
func parse(file string, data []byte, kinds sinks.Kinds, policy config.Policy) (*plan.State, error) {
	cfg, err := config.Parse(file, data, Blocks(kinds))
	return compile(cfg, err, policy)
}

// Blocks are the kinds as the configuration's loader takes them.
func Blocks(kinds sinks.Kinds) config.Kinds {
	out := make(config.Kinds, len(kinds))
	for name, newConfig := range kinds {
		out[name] = func() any { return newConfig() }
	}
	return out
}

// compile makes a state of what the loader returned. Of a configuration that is not valid
// it finds the errors of all stages.
func compile(cfg *config.Config, err error, policy config.Policy) (*plan.State, error) {
	if err != nil {
		found, ok := errors.AsType[*config.Errors](err)
		if !ok {
			return nil, &unreadableError{err}
		}
		cfg = found.Partial()
	}
	var st *plan.State
	if cfg != nil {
		compiled, faults := plan.Compile(cfg)
		st, err = compiled, config.Join(err, policy.Check(cfg), faults)
	}
	if err != nil {
		return nil, fmt.Errorf("%w:\n%w", ErrConfig, err)
	}
	st.Unavailable = cfg.Unavailable()
	return st, nil
}
