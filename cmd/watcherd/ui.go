package main

import (
	"context"
	"errors"
	"fmt"
	"html"
	"os"
	"os/exec"
	"path/filepath"
	"runtime"
	"time"

	"github.com/spf13/cobra"
)

func newUICommand() *cobra.Command {
	var (
		flags          adminFlags
		open, readOnly bool
	)
	cmd := &cobra.Command{
		Use:   "ui",
		Short: "Print the address of the page, or open it",
		Long: "Ui prints the address of the page that the daemon serves, with the token for commands in its fragment if there is one.\n" +
			"The page keeps the token in its tab. Who has the address may do what the token allows.",
		Example: "  watcherd ui\n  watcherd ui --config watcherd.yaml --open\n  watcherd ui --config watcherd.yaml --read-only",
		Args:    usageArgs(cobra.NoArgs),
		RunE: func(cmd *cobra.Command, _ []string) error {
			c, err := flags.client()
			if err != nil {
				return err
			}
			page, err := c.Page(!readOnly)
			if err != nil {
				return err
			}
			if open {
				return openBrowser(cmd.Context(), page)
			}
			_, err = fmt.Fprintln(cmd.OutOrStdout(), page)
			return err
		},
	}
	flags.bind(cmd)
	cmd.Flags().BoolVar(&open, "open", false, "open the page in the browser of the desktop")
	cmd.Flags().BoolVar(&readOnly, "read-only", false, "with the token for reading")
	return cmd
}

// openBrowser leads the browser to a page through a file that only its user may read: other
// users of the machine see the arguments of processes. The file is deleted after a while.
func openBrowser(ctx context.Context, page string) (err error) {
	dir, err := os.MkdirTemp("", "watcherd-ui-")
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, os.RemoveAll(dir)) }()
	file := filepath.Join(dir, "watcherd.html")
	redirect := fmt.Sprintf("<!doctype html><meta http-equiv=\"refresh\" content=\"0;url=%s\">\n", html.EscapeString(page))
	if err := os.WriteFile(file, []byte(redirect), 0o600); err != nil {
		return err
	}
	opener := "xdg-open"
	if runtime.GOOS == "darwin" {
		opener = "open"
	}
	if out, err := exec.CommandContext(ctx, opener, file).CombinedOutput(); err != nil { //nolint:gosec // one of the two above
		return fmt.Errorf("%s: %w %s; without --open the address is printed", opener, err, out)
	}
	select {
	case <-time.After(10 * time.Second):
	case <-ctx.Done():
	}
	return nil
}
