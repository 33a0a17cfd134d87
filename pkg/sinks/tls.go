package sinks

import (
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"errors"
	"fmt"
	"slices"
)

// TLS is the `tls` block of kinds that speak TLS: the files to trust and to
// present. Nothing in it can turn verification off.
type TLS struct {
	CAFile     string `json:"caFile,omitempty"`     // PEM certificates to trust instead of the system's
	CertFile   string `json:"certFile,omitempty"`   // PEM client certificate and its chain
	KeyFile    string `json:"keyFile,omitempty"`    // PEM key of CertFile
	ServerName string `json:"serverName,omitempty"` // name to verify instead of the host's
}

// IsZero reports whether the block is empty.
func (t TLS) IsZero() bool { return t == TLS{} }

// Validate reports every problem below path, joined.
func (t TLS) Validate(path string) error {
	if (t.CertFile == "") != (t.KeyFile == "") {
		return &FieldError{Path: path, Msg: "certFile and keyFile belong together"}
	}
	return nil
}

// In returns the block with relative files taken from dir ([Options.Dir]).
func (t TLS) In(dir string) TLS {
	t.CAFile, t.CertFile, t.KeyFile = InDir(dir, t.CAFile), InDir(dir, t.CertFile), InDir(dir, t.KeyFile)
	return t
}

// Load reads the files into a client configuration. All of them are read at each
// call, so that rotated ones take effect.
func (t TLS) Load() (*tls.Config, error) { return t.load(readFile) }

// load makes a configuration of what read returns for the files.
func (t TLS) load(read func(path string) ([]byte, error)) (*tls.Config, error) {
	c := &tls.Config{MinVersion: tls.VersionTLS12, ServerName: t.ServerName}
	roots, err := t.roots(read)
	if err != nil {
		return nil, err
	}
	c.RootCAs = roots
	if t.CertFile != "" {
		pair, err := t.certificate(read)
		if err != nil {
			return nil, err
		}
		c.Certificates = []tls.Certificate{pair}
	}
	return c, nil
}

// Roots reads CAFile; without one the pool is nil, which means the system's.
func (t TLS) Roots() (*x509.CertPool, error) { return t.roots(readFile) }

func (t TLS) roots(read func(path string) ([]byte, error)) (*x509.CertPool, error) {
	if t.CAFile == "" {
		return nil, nil //nolint:nilnil // as crypto/tls wants it
	}
	pem, err := read(t.CAFile)
	if err != nil {
		return nil, fmt.Errorf("read caFile: %w", err)
	}
	pool := x509.NewCertPool()
	if !pool.AppendCertsFromPEM(pem) {
		return nil, fmt.Errorf("caFile %s holds no PEM certificate", t.CAFile)
	}
	return pool, nil
}

// Certificate reads CertFile and KeyFile, which must match.
func (t TLS) Certificate() (tls.Certificate, error) {
	if t.CertFile == "" {
		return tls.Certificate{}, errors.New("no certFile is named")
	}
	return t.certificate(readFile)
}

func (t TLS) certificate(read func(path string) ([]byte, error)) (pair tls.Certificate, err error) {
	cert, err := read(t.CertFile)
	if err == nil {
		var key []byte
		if key, err = read(t.KeyFile); err == nil {
			pair, err = tls.X509KeyPair(cert, key)
		}
	}
	if err != nil {
		return tls.Certificate{}, fmt.Errorf("read certFile and keyFile: %w", err)
	}
	return pair, nil
}

// TLSFiles loads a block again when its files change. It is not safe for concurrent use.
type TLSFiles struct {
	TLS TLS

	current *tls.Config
	seen    [sha256.Size]byte
}

// Load returns the configuration and whether it is a new one. Files that cannot be used
// leave the previous configuration, if there is one, and are an error once, until they
// change again: writers replace them one after the other.
func (f *TLSFiles) Load() (config *tls.Config, changed bool, err error) {
	files := f.read()
	if seen := files.fingerprint(); f.current == nil || seen != f.seen {
		f.seen = seen
		next, err := f.TLS.load(files.file)
		if err != nil {
			return f.current, false, err
		}
		f.current = next
		return next, true, nil
	}
	return f.current, false, nil
}

// read reads the files once: what is compared is what is loaded, although a writer is at work.
func (f *TLSFiles) read() (files contents) {
	for _, path := range [...]string{f.TLS.CAFile, f.TLS.CertFile, f.TLS.KeyFile} {
		if path != "" {
			b, err := readFile(path)
			files = append(files, content{path, b, err})
		}
	}
	return files
}

// contents are what a reading found.
type contents []content

type content struct {
	path string
	text []byte
	err  error
}

func (c contents) file(path string) ([]byte, error) {
	i := slices.IndexFunc(c, func(f content) bool { return f.path == path })
	return c[i].text, c[i].err
}

// fingerprint is of the contents: a mounted volume is swapped by a link, and the
// times of its files prove little.
func (c contents) fingerprint() [sha256.Size]byte {
	h := sha256.New()
	for _, f := range c {
		if f.err != nil {
			f.text = []byte(f.err.Error())
		}
		fmt.Fprintf(h, "%d:", len(f.text))
		h.Write(f.text)
	}
	return [sha256.Size]byte(h.Sum(nil))
}
