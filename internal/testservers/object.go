package testservers

import (
	"bytes"
	"errors"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/klauspost/compress/zstd"

	"github.com/watcherd/watcherd/internal/testcluster/playground"
)

// ObjectSpec is what the server of an object storage is started with.
type ObjectSpec struct {
	Dir    string // of its data; "": one of the test
	Bucket string // is made
	Port   int    // 0: any
	Cert   string // PEM; TLS if not empty
	Key    string
	Access string // the key it demands
	Secret string
}

// Object is object storage that speaks the API of S3. Its methods may be called from any goroutine, one at a time.
type Object struct {
	*process

	spec *ObjectSpec
}

// StartObject starts a server that is killed at the end of the test.
func StartObject(t testing.TB, spec ObjectSpec) *Object {
	t.Helper()
	if spec.Dir == "" {
		spec.Dir = t.TempDir()
	}
	o := &Object{spec: &spec}
	o.process = run(t, playground.Object(), func(port int) any {
		if spec.Port == 0 {
			spec.Port = port
		}
		return spec
	})
	return o
}

// SetSecret makes it demand another secret from its next start on.
func (o *Object) SetSecret(secret string) { o.spec.Secret = secret }

// Folder is where the objects of the bucket are, as files.
func (o *Object) Folder() string { return filepath.Join(o.spec.Dir, "buckets", o.spec.Bucket) }

// Lines are the decompressed lines of each object of a folder by its key, which are in the order of a walk.
func (o *Object) Lines(folder string) (keys []string, lines map[string][][]byte) {
	o.t.Helper()
	lines = map[string][][]byte{}
	err := filepath.WalkDir(filepath.Join(o.Folder(), folder), func(path string, d fs.DirEntry, err error) error {
		if errors.Is(err, fs.ErrNotExist) {
			return nil
		}
		if err != nil || d.IsDir() || !strings.HasSuffix(path, ".zst") {
			return err
		}
		content, err := os.ReadFile(path)
		if err != nil {
			return err
		}
		z, err := zstd.NewReader(bytes.NewReader(content), zstd.WithDecoderConcurrency(1))
		if err != nil {
			return err
		}
		defer z.Close()
		text, err := io.ReadAll(z)
		if err != nil {
			return err
		}
		key, err := filepath.Rel(o.Folder(), path)
		if err != nil {
			return err
		}
		keys = append(keys, key)
		for line := range bytes.Lines(text) {
			lines[key] = append(lines[key], line)
		}
		return nil
	})
	if err != nil {
		o.t.Fatal(err)
	}
	return keys, lines
}
