package watcherd

import (
	"fmt"
	"os"

	"github.com/watcherd/watcherd/config"
	"github.com/watcherd/watcherd/internal/plan"
	"github.com/watcherd/watcherd/pkg/sinks"
)

// Load reads and checks a configuration file without starting anything. Its
// errors wrap [ErrConfig] and name file, line and key.
func Load(file string, kinds sinks.Kinds) (*plan.State, error) {
	data, err := os.ReadFile(file)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrConfig, err)
	}
	return parse(file, data, kinds)
}

func parse(file string, data []byte, kinds sinks.Kinds) (*plan.State, error) {
	blocks := make(config.Kinds, len(kinds))
	for name, newConfig := range kinds {
		blocks[name] = func() any { return newConfig() }
	}
	cfg, err := config.Parse(file, data, blocks)
	if err != nil {
		return nil, fmt.Errorf("%w:\n%w", ErrConfig, err)
	}
	st, err := plan.Compile(cfg)
	if err != nil {
		return nil, fmt.Errorf("%w:\n%w", ErrConfig, err)
	}
	return st, nil
}
