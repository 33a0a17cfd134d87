package main

import (
	"bytes"
	"context"
	"crypto/tls"
	"crypto/x509"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/url"
	"os"
	"strings"
	"syscall"
	"time"

	"github.com/spf13/cobra"
	"github.com/spf13/pflag"

	"github.com/watcherd/watcherd/internal/admin"
	"github.com/watcherd/watcherd/internal/status"
	"github.com/watcherd/watcherd/pkg/watcherd"
)

const defaultAdmin = "http://127.0.0.1:8080"

// adminFlags say where the daemon's admin listener is and how to be let in.
type adminFlags struct {
	url, config, tokenFile    string
	caFile, certFile, keyFile string
}

func (f *adminFlags) bind(cmd *cobra.Command) {
	flags := cmd.PersistentFlags()
	flags.StringVar(&f.url, "admin", "", "URL of the daemon's admin listener (default: that of --config, or "+defaultAdmin+")")
	flags.StringVarP(&f.config, "config", "c", "", "the daemon's configuration file, to find its admin listener")
	flags.StringVar(&f.tokenFile, "token-file", "", "file with the bearer token (default: admin.auth.tokenFile of --config)")
	flags.StringVar(&f.caFile, "ca-file", "", "authority that signed the admin listener's certificate")
	flags.StringVar(&f.certFile, "cert-file", "", "client certificate")
	flags.StringVar(&f.keyFile, "key-file", "", "key of the client certificate")
}

// adminClient talks to a daemon.
type adminClient struct {
	base  string
	token string
	http  *http.Client
}

func (f *adminFlags) client() (*adminClient, error) {
	base, tokenFile := f.url, f.tokenFile
	if f.config != "" {
		st, err := watcherd.Load(f.config, watcherd.Kinds())
		if err != nil {
			return nil, err
		}
		if base == "" {
			if st.Admin.Listen == "" {
				return nil, fmt.Errorf("%s has no admin listener (admin.listen is empty), so its daemon cannot be asked", f.config)
			}
			if base, err = urlOf(st.Admin.Listen, st.Admin.CertFile != ""); err != nil {
				return nil, err
			}
		}
		if tokenFile == "" {
			tokenFile = st.Admin.TokenFile
		}
	}
	if base == "" {
		base = defaultAdmin
	}
	if !strings.Contains(base, "://") {
		base = "http://" + base
	}
	u, err := url.Parse(base)
	if err != nil || u.Host == "" || u.Scheme != "http" && u.Scheme != "https" {
		return nil, &usageError{fmt.Errorf("--admin %q: use http://HOST:PORT or https://HOST:PORT", base)}
	}
	c := &adminClient{base: strings.TrimSuffix(base, "/")}
	if tokenFile != "" {
		b, err := os.ReadFile(tokenFile)
		if err != nil {
			return nil, fmt.Errorf("token: %w", err)
		}
		c.token = strings.TrimSpace(string(b))
	}
	tlsConfig, err := f.tls()
	if err != nil {
		return nil, err
	}
	c.http = &http.Client{
		Transport: &http.Transport{
			Proxy: http.ProxyFromEnvironment, TLSClientConfig: tlsConfig, ForceAttemptHTTP2: true,
			DialContext: (&net.Dialer{Timeout: 10 * time.Second}).DialContext, TLSHandshakeTimeout: 10 * time.Second,
		},
		// A token goes to the daemon alone.
		CheckRedirect: func(*http.Request, []*http.Request) error { return http.ErrUseLastResponse },
	}
	return c, nil
}

// urlOf is how to reach an address to listen on from this machine.
func urlOf(listen string, secure bool) (string, error) {
	host, port, err := net.SplitHostPort(listen)
	if err != nil {
		return "", fmt.Errorf("admin.listen: %w", err)
	}
	if ip := net.ParseIP(host); host == "" || ip != nil && ip.IsUnspecified() {
		host = "127.0.0.1"
	}
	scheme := "http"
	if secure {
		scheme = "https"
	}
	return scheme + "://" + net.JoinHostPort(host, port), nil
}

func (f *adminFlags) tls() (*tls.Config, error) {
	cfg := &tls.Config{MinVersion: tls.VersionTLS12}
	if f.caFile != "" {
		pem, err := os.ReadFile(f.caFile)
		if err != nil {
			return nil, fmt.Errorf("--ca-file: %w", err)
		}
		cfg.RootCAs = x509.NewCertPool()
		if !cfg.RootCAs.AppendCertsFromPEM(pem) {
			return nil, fmt.Errorf("--ca-file: no PEM certificate in %s", f.caFile)
		}
	}
	if (f.certFile == "") != (f.keyFile == "") {
		return nil, &usageError{errors.New("--cert-file and --key-file go together")}
	}
	if f.certFile != "" {
		cert, err := tls.LoadX509KeyPair(f.certFile, f.keyFile)
		if err != nil {
			return nil, fmt.Errorf("--cert-file: %w", err)
		}
		cfg.Certificates = []tls.Certificate{cert}
	}
	return cfg, nil
}

// get decodes the answer to a GET into out.
func (c *adminClient) get(ctx context.Context, path string, query url.Values, out any) error {
	resp, err := c.do(ctx, http.MethodGet, path, query, nil, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return decodeAnswer(resp, out)
}

// post sends in as JSON and decodes the answer into out.
func (c *adminClient) post(ctx context.Context, path string, in, out any) error {
	resp, err := c.do(ctx, http.MethodPost, path, nil, in, nil)
	if err != nil {
		return err
	}
	defer resp.Body.Close()
	return decodeAnswer(resp, out)
}

func decodeAnswer(resp *http.Response, out any) error {
	if err := json.NewDecoder(resp.Body).Decode(out); err != nil {
		return fmt.Errorf("the answer of the daemon is not understood: %w", err)
	}
	return nil
}

// run posts a command, calls progress on the way, and returns the count.
func (c *adminClient) run(ctx context.Context, path string, in any, progress func(int)) (int, error) {
	resp, err := c.do(ctx, http.MethodPost, path, nil, in, http.Header{"Accept": {admin.ContentTypeProgress}})
	if err != nil {
		return 0, err
	}
	defer resp.Body.Close()
	count := 0
	for d := json.NewDecoder(resp.Body); ; {
		var p admin.Progress
		if err := d.Decode(&p); err != nil {
			return count, fmt.Errorf("the connection to the daemon was lost after %d events: %w", count, err)
		}
		count = p.Count
		switch {
		case p.Error != "":
			return count, errors.New(p.Error)
		case p.Done:
			return count, nil
		}
		progress(count)
	}
}

// do returns a response with status 200, whose body the caller closes.
func (c *adminClient) do(ctx context.Context, method, path string, query url.Values, in any, header http.Header) (*http.Response, error) {
	var body io.Reader
	if in != nil {
		b, err := json.Marshal(in)
		if err != nil {
			return nil, err
		}
		body = bytes.NewReader(b)
	}
	target := c.base + path
	if len(query) > 0 {
		target += "?" + query.Encode()
	}
	req, err := http.NewRequestWithContext(ctx, method, target, body)
	if err != nil {
		return nil, err
	}
	maps.Copy(req.Header, header)
	if in != nil {
		req.Header.Set("Content-Type", "application/json")
	}
	if c.token != "" {
		req.Header.Set("Authorization", "Bearer "+c.token)
	}
	resp, err := c.http.Do(req)
	if err != nil {
		return nil, c.unreachable(ctx, err)
	}
	if resp.StatusCode == http.StatusOK {
		return resp, nil
	}
	defer resp.Body.Close()
	return nil, c.refused(resp)
}

func (c *adminClient) unreachable(ctx context.Context, err error) error {
	switch {
	case ctx.Err() != nil:
		return ctx.Err()
	case errors.Is(err, syscall.ECONNREFUSED):
		return fmt.Errorf("no daemon answers at %s: is 'watcherd run' running? Say where its admin listener is with --admin or --config", c.base)
	}
	// The url.Error around it repeats the method and the URL.
	if u, ok := errors.AsType[*url.Error](err); ok {
		err = u.Err
	}
	return fmt.Errorf("the daemon at %s cannot be reached: %w", c.base, err)
}

// refused reads the daemon's error message.
func (c *adminClient) refused(resp *http.Response) error {
	b, err := io.ReadAll(io.LimitReader(resp.Body, 64<<10))
	p := &admin.Problem{}
	if err != nil || json.Unmarshal(b, p) != nil || p.Status == 0 {
		return fmt.Errorf("%s does not answer like watcherd (%s): is it its admin listener?", c.base, resp.Status)
	}
	return p
}

// completeSinks completes the names of sinks by asking the daemon.
func (f *adminFlags) completeSinks(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	c, err := f.client()
	if err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	ctx, cancel := context.WithTimeout(cmd.Context(), 2*time.Second)
	defer cancel()
	var st status.Status
	if err := c.get(ctx, "/api/v1/status", nil, &st); err != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, s := range st.Sinks {
		names = append(names, s.Name)
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// addSinkFlag adds the required flag --sink.
func (f *adminFlags) addSinkFlag(cmd *cobra.Command, flags *pflag.FlagSet, sink *string) {
	flags.StringVar(sink, "sink", "", "name of the sink (required)")
	mustMark(cobra.MarkFlagRequired(flags, "sink"))
	mustMark(cmd.RegisterFlagCompletionFunc("sink", f.completeSinks))
}

// mustMark is for what only fails if a flag is not defined.
func mustMark(err error) {
	if err != nil {
		panic(fmt.Sprintf("mark flag: %v", err))
	}
}
