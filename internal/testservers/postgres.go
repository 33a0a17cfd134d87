package testservers

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"maps"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/jackc/pgx/v5/pgconn"

	"github.com/watcherd/watcherd/internal/testcluster/playground"
	"github.com/watcherd/watcherd/internal/testkit"
)

// PostgresSpec is what a PostgreSQL server is started with.
type PostgresSpec struct {
	Password string            // of the role watcherd, by SCRAM; "": every client is trusted
	Cert     string            // PEM; connections need TLS if not empty
	Key      string            // PEM
	ClientCA string            // PEM; client certificates are demanded if not empty
	Settings map[string]string // of postgresql.conf
}

// Postgres is a PostgreSQL server with a database watcherd that a role of that name owns. Its methods may be called
// from any goroutine, one at a time.
type Postgres struct {
	Addr string

	t    testing.TB
	dir  string // what only the server's user can read
	port string
	bin  string
	cmd  *exec.Cmd
}

// patience bounds every wait for a server.
const patience = 60 * time.Second

// StartPostgres starts a server that is killed at the end of the test. Where PostgreSQL is not installed it skips the
// test or, in CI, fails it.
func StartPostgres(t testing.TB, spec PostgresSpec) *Postgres {
	t.Helper()
	bin := postgresBinaries()
	if bin == "" {
		const missing = "PostgreSQL is not installed: apt-get install -y --no-install-recommends postgresql"
		if os.Getenv("CI") == "true" {
			t.Fatal(missing)
		}
		t.Skip(missing)
	}
	template, err := postgresTemplate(bin)
	if err != nil {
		t.Fatalf("PostgreSQL server: %v", err)
	}
	dir, err := os.MkdirTemp("", "watcherd-postgres-") //nolint:usetesting // the server's user must not enter that of the test
	if err != nil {
		t.Fatal(err)
	}
	p := &Postgres{t: t, dir: dir, bin: bin}
	t.Cleanup(func() {
		p.Kill()
		if err := os.RemoveAll(dir); err != nil {
			t.Error(err)
		}
	})
	if err := p.make(template, spec); err != nil {
		t.Fatalf("PostgreSQL server: %v", err)
	}
	if p.Start(); t.Failed() {
		t.FailNow()
	}
	return p
}

// postgresBinaries is the folder of the newest server, or "".
func postgresBinaries() string {
	found, _ := filepath.Glob("/usr/lib/postgresql/*/bin/initdb") // the pattern is right
	if path, err := exec.LookPath("initdb"); err == nil {
		found = append(found, path)
	}
	if len(found) == 0 {
		return ""
	}
	version := func(path string) int {
		n, _ := strconv.Atoi(filepath.Base(filepath.Dir(filepath.Dir(path)))) // 0: not Debian's
		return n
	}
	return filepath.Dir(slices.MaxFunc(found, func(a, b string) int { return version(a) - version(b) }))
}

// unprivileged is the user of the servers if this one is root, as which PostgreSQL does not run.
func unprivileged() *syscall.Credential {
	const noRights = 65534 // of every Linux
	if os.Geteuid() != 0 {
		return nil
	}
	return &syscall.Credential{Uid: noRights, Gid: noRights}
}

// postgresTemplate is a fresh database in the cache folder that servers are copied from.
func postgresTemplate(bin string) (string, error) {
	cache, err := playground.CacheDir()
	if err != nil {
		return "", err
	}
	out, err := exec.CommandContext(context.Background(), filepath.Join(bin, "initdb"), "--version").Output()
	if err != nil {
		return "", err
	}
	version := strings.Fields(strings.TrimPrefix(string(out), "initdb (PostgreSQL) "))
	final := filepath.Join(cache, "postgres-"+strings.Join(version[:1], ""))
	if _, err := os.Stat(final); err == nil {
		return final, nil
	}
	dir, err := os.MkdirTemp("", "watcherd-initdb-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(dir)
	if err := own(dir); err != nil {
		return "", err
	}
	data := filepath.Join(dir, "data")
	cmd := server(context.Background(), filepath.Join(bin, "initdb"), "-D", data, "-U", "postgres", "-A", "trust", "-E", "UTF8", "--locale=C", "--wal-segsize=1", "--no-sync")
	cmd.Dir = dir
	if out, err := cmd.CombinedOutput(); err != nil {
		return "", fmt.Errorf("initdb: %w\n%s", err, out)
	}
	if err := os.MkdirAll(filepath.Dir(final), 0o750); err != nil {
		return "", err
	}
	partial, err := os.MkdirTemp(filepath.Dir(final), "initdb-")
	if err != nil {
		return "", err
	}
	defer os.RemoveAll(partial)
	if err := os.CopyFS(filepath.Join(partial, "data"), os.DirFS(data)); err != nil {
		return "", err
	}
	if err := os.Rename(filepath.Join(partial, "data"), final); err != nil && !errors.Is(err, fs.ErrExist) {
		return "", err
	}
	return final, nil
}

// server is a command of the unprivileged user.
func server(ctx context.Context, program string, args ...string) *exec.Cmd {
	cmd := exec.CommandContext(ctx, program, args...)
	cmd.SysProcAttr = &syscall.SysProcAttr{Credential: unprivileged()}
	cmd.Env = []string{"PATH=" + os.Getenv("PATH"), "LC_ALL=C"}
	return cmd
}

// own gives everything below dir to the unprivileged user alone.
func own(dir string) error {
	credential := unprivileged()
	return filepath.WalkDir(dir, func(path string, d fs.DirEntry, err error) error {
		if err != nil {
			return err
		}
		mode := fs.FileMode(0o600)
		if d.IsDir() {
			mode = 0o700
		}
		if credential != nil {
			if err := os.Chown(path, int(credential.Uid), int(credential.Gid)); err != nil {
				return err
			}
		}
		return os.Chmod(path, mode)
	})
}

// make makes the server's files.
func (p *Postgres) make(template string, spec PostgresSpec) error {
	data := filepath.Join(p.dir, "data")
	if err := os.CopyFS(data, os.DirFS(template)); err != nil {
		return err
	}
	p.Addr = testkit.Address(p.t)
	_, p.port, _ = net.SplitHostPort(p.Addr)
	settings := map[string]string{
		"listen_addresses": "127.0.0.1", "port": p.port, "unix_socket_directories": p.dir, "shared_buffers": "16MB", "max_connections": "30",
		"autovacuum": "off", "fsync": "off", "log_min_messages": "fatal", "ssl": "off",
	}
	hba := "host"
	files := map[string]string{}
	if spec.Cert != "" {
		hba = "hostssl"
		files["server.crt"], files["server.key"] = spec.Cert, spec.Key
		settings["ssl"], settings["ssl_cert_file"], settings["ssl_key_file"] = "on", "server.crt", "server.key"
	}
	method := "trust"
	if spec.Password != "" {
		method = "scram-sha-256"
	}
	if spec.ClientCA != "" {
		files["ca.crt"], settings["ssl_ca_file"] = spec.ClientCA, "ca.crt"
		method += " clientcert=verify-ca"
	}
	maps.Copy(settings, spec.Settings)
	var conf bytes.Buffer
	for name, value := range settings {
		fmt.Fprintf(&conf, "%s = '%s'\n", name, value)
	}
	files["postgresql.auto.conf"] = conf.String()
	files["pg_hba.conf"] = "local all all trust\n" + hba + " all all 127.0.0.1/32 " + method + "\n"
	for name, content := range files {
		if err := os.WriteFile(filepath.Join(data, name), []byte(content), 0o600); err != nil {
			return err
		}
	}
	if err := own(p.dir); err != nil {
		return err
	}
	if err := p.start(); err != nil {
		return err
	}
	password := ""
	if spec.Password != "" {
		password = " password '" + spec.Password + "'"
	}
	if _, err := p.query("postgres", "create role watcherd login"+password); err != nil {
		return err
	}
	_, err := p.query("postgres", "create database watcherd owner watcherd")
	return err
}

// Start starts the server, with its data, at its address, if it does not run.
func (p *Postgres) Start() {
	p.t.Helper()
	if p.cmd != nil {
		return
	}
	if err := p.start(); err != nil {
		p.t.Errorf("PostgreSQL server: %v", err)
	}
}

func (p *Postgres) start() error {
	cmd := server(context.WithoutCancel(p.t.Context()), filepath.Join(p.bin, "postgres"), "-D", filepath.Join(p.dir, "data"))
	log, err := os.Create(filepath.Join(p.dir, "log"))
	if err != nil {
		return err
	}
	defer log.Close()
	cmd.Dir, cmd.Stdout, cmd.Stderr = p.dir, log, log
	if err := cmd.Start(); err != nil {
		return err
	}
	p.cmd = cmd
	for deadline := time.Now().Add(patience); ; time.Sleep(20 * time.Millisecond) {
		_, err := p.query("postgres", "select 1")
		if err == nil {
			return nil
		}
		if time.Now().After(deadline) {
			said, _ := os.ReadFile(filepath.Join(p.dir, "log")) // the other error is the one to report
			return fmt.Errorf("%w\n%s", err, said)
		}
	}
}

// processes are the server's: the first, and those that it has started.
func (p *Postgres) processes() []int {
	all := []int{p.cmd.Process.Pid}
	children, _ := os.ReadFile(fmt.Sprintf("/proc/%[1]d/task/%[1]d/children", all[0])) // none if it has ended
	for child := range strings.FieldsSeq(string(children)) {
		if pid, err := strconv.Atoi(child); err == nil {
			all = append(all, pid)
		}
	}
	return all
}

// Freeze stops the server's processes, which keep their connections and read nothing.
func (p *Postgres) Freeze() {
	p.t.Helper()
	first := p.cmd.Process.Pid
	if err := syscall.Kill(first, syscall.SIGSTOP); err != nil {
		p.t.Errorf("stop the PostgreSQL server: %v", err)
		return
	}
	for !stopped(first) { // from then on it starts no other process
		time.Sleep(time.Millisecond)
	}
	for _, pid := range p.processes()[1:] {
		_ = syscall.Kill(pid, syscall.SIGSTOP) // it may end by itself
	}
}

// stopped reports whether the process is stopped, or gone.
func stopped(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, _ := bytes.Cut(stat, []byte(") "))
	return bytes.HasPrefix(state, []byte("T")) || bytes.HasPrefix(state, []byte("Z"))
}

// Thaw lets them continue.
func (p *Postgres) Thaw() {
	for _, pid := range p.processes() {
		_ = syscall.Kill(pid, syscall.SIGCONT) // it may have ended
	}
}

// Kill ends all processes at once, if the server runs.
func (p *Postgres) Kill() {
	if p.cmd == nil {
		return
	}
	p.Freeze()
	all := p.processes()
	for _, pid := range all {
		_ = syscall.Kill(pid, syscall.SIGKILL) // it may have ended
	}
	_ = p.cmd.Wait()
	p.cmd = nil
	// The data belongs to the processes until the last one is gone.
	for _, pid := range all[1:] {
		for deadline := time.Now().Add(patience); !gone(pid) && time.Now().Before(deadline); {
			time.Sleep(time.Millisecond)
		}
	}
}

// gone reports whether the process has ended.
func gone(pid int) bool {
	stat, err := os.ReadFile(fmt.Sprintf("/proc/%d/stat", pid))
	if err != nil {
		return true
	}
	_, state, _ := bytes.Cut(stat, []byte(") "))
	return bytes.HasPrefix(state, []byte("Z"))
}

// Restart kills the server and starts it again.
func (p *Postgres) Restart() {
	p.Kill()
	p.Start()
}

// Exec runs statements in database watcherd, as a superuser beside every client, and returns the rows of the last one.
func (p *Postgres) Exec(sql string) [][]string {
	p.t.Helper()
	rows, err := p.query("watcherd", sql)
	if err != nil {
		p.t.Fatalf("%v: %s", err, sql)
	}
	return rows
}

func (p *Postgres) query(database, sql string) ([][]string, error) {
	ctx, cancel := context.WithTimeout(context.WithoutCancel(p.t.Context()), patience)
	defer cancel()
	c, err := pgconn.Connect(ctx, fmt.Sprintf("host=%s port=%s user=postgres database=%s sslmode=disable", p.dir, p.port, database))
	if err != nil {
		return nil, err
	}
	defer c.Close(ctx)
	results, err := c.Exec(ctx, sql).ReadAll()
	if err != nil || len(results) == 0 {
		return nil, err
	}
	last := results[len(results)-1].Rows
	rows := make([][]string, len(last))
	for i, row := range last {
		for _, value := range row {
			rows[i] = append(rows[i], string(value))
		}
	}
	return rows, nil
}

// URL is that of the database watcherd, without a password.
func (p *Postgres) URL() string { return "postgres://watcherd@" + p.Addr + "/watcherd" }

// URLFile is a file with the URL, as a secret has it.
func URLFile(t testing.TB, p *Postgres) string {
	t.Helper()
	path := filepath.Join(t.TempDir(), "url")
	if err := os.WriteFile(path, []byte(p.URL()+"?sslmode=disable\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	return path
}
