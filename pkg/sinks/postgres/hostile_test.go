package postgres_test

import (
	"encoding/binary"
	"net"
	"runtime"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/pkg/sinks"
	"github.com/watcherd/watcherd/pkg/sinks/postgres"
	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// message is one of the protocol: the kind, its length, the content.
func message(kind byte, content string) []byte {
	return append(binary.BigEndian.AppendUint32([]byte{kind}, uint32(4+len(content))), content...)
}

// TestHostileServer: what a server sends takes bounded memory.
func TestHostileServer(t *testing.T) {
	const most = 300 << 20
	long := strings.Repeat("x", 1<<20)
	for name, send := range map[string]func(conn net.Conn) error{
		"a long message": func(conn net.Conn) error {
			head := binary.BigEndian.AppendUint32([]byte{'S'}, 1<<29)
			_, err := conn.Write(append(head, long...))
			return err
		},
		"many messages": func(conn net.Conn) error {
			content := []byte("name" + "\x00" + long + "\x00")
			for i := range 500 { // without an allocation: those of the client are looked at
				binary.BigEndian.PutUint32(content, uint32(i))
				for j := range 4 {
					content[j] |= 0x40 // no end of a text
				}
				for _, part := range [][]byte{binary.BigEndian.AppendUint32([]byte{'S'}, uint32(4+len(content))), content} {
					if _, err := conn.Write(part); err != nil {
						return err
					}
				}
			}
			return nil
		},
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					_, _ = conn.Read(make([]byte, 1<<10)) // the startup message
					if _, err := conn.Write(message('R', "\x00\x00\x00\x00")); err == nil {
						_ = send(conn) // the client may end it
					}
					_ = conn.Close()
				}
			}()
			t.Setenv("POSTGRES_TEST_URL", "postgres://me:canary@"+listener.Addr().String()+"/db?sslmode=disable")
			c := postgres.NewConfig()
			c.URL = sinks.Secret{Env: "POSTGRES_TEST_URL"}
			s := sinktest.Open(t, c)
			var before, after runtime.MemStats
			runtime.ReadMemStats(&before)
			err = s.Write(t.Context(), sinktest.Events(1, 1))
			runtime.ReadMemStats(&after)
			sinktest.WantClass(t, err, sinks.ClassRetry)
			if got := after.TotalAlloc - before.TotalAlloc; got > most {
				t.Errorf("%d MiB were allocated: %v", got>>20, err)
			}
		})
	}
}
