// Command bento is Bento for tests, with what its examples need, in a process of its own that can be killed or
// stopped. Its argument is a JSON document (spec). It prints its address and ends with its input.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"strings"

	_ "github.com/warpstreamlabs/bento/public/components/io"
	_ "github.com/warpstreamlabs/bento/public/components/mqtt"
	_ "github.com/warpstreamlabs/bento/public/components/pure"
	"github.com/warpstreamlabs/bento/public/service"

	"github.com/watcherd/watcherd/internal/testservers/servers/program"
)

// spec is what internal/testservers calls BentoSpec.
type spec struct {
	Config  string
	Address string // in the config, of the input; its place is taken by that of the test
	Port    int
}

func main() { program.Main(run) }

func run(ctx context.Context, s *spec) error {
	address, err := program.Address(s.Port)
	if err != nil {
		return err
	}
	b := service.NewStreamBuilder()
	if err := b.SetYAML(strings.ReplaceAll(s.Config, s.Address, address)); err != nil {
		return err
	}
	stream, err := b.Build()
	if err != nil {
		return err
	}
	ctx, stop := context.WithCancel(ctx)
	fmt.Println(address)
	go func() {
		_, _ = io.Copy(io.Discard, os.Stdin)
		stop()
	}()
	return stream.Run(ctx)
}
