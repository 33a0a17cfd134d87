package nats_test

import (
	"bufio"
	"fmt"
	"net"
	"strings"
	"testing"

	"github.com/watcherd/watcherd/pkg/sinks/sinktest"
)

// What a server announces does not end the process: the client makes room for it at once.
func TestHostileServer(t *testing.T) {
	for name, answer := range map[string]string{
		"a message":              "MSG x 1 9000000000000000000\r\nabc",
		"a message, in parts":    "M|SG x 1 900000|0000000000000|\r\nabc",
		"a message with headers": "HMSG x 1 12 9000000000000000000\r\nabc",
		"a second message":       "MSG x 1 8\r\nMSG\r\nPI\r\n|msg x 1 9000000000000000000\r\nabc",
		"a line":                 "-ERR '" + strings.Repeat("x", 4<<20) + "|'\r\n",
	} {
		t.Run(name, func(t *testing.T) {
			listener, err := net.Listen("tcp", "127.0.0.1:0")
			if err != nil {
				t.Fatal(err)
			}
			defer listener.Close()
			ended := make(chan struct{}, 100) // a value for each connection that the client ended
			go func() {
				for {
					conn, err := listener.Accept()
					if err != nil {
						return
					}
					go func() {
						defer conn.Close()
						fmt.Fprint(conn, `INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"proto":1,"headers":true}`+"\r\n")
						lines := bufio.NewScanner(conn)
						for lines.Scan() {
							if lines.Text() != "PING" {
								continue
							}
							fmt.Fprint(conn, "PONG\r\n")
							for part := range strings.SplitSeq(answer, "|") {
								fmt.Fprint(conn, part)
							}
						}
						select {
						case ended <- struct{}{}:
						default:
						}
					}()
				}
			}()
			s := sinktest.Open(t, configFor("nats://"+listener.Addr().String(), false))
			_ = s.Write(t.Context(), sinktest.Events(1, 1)) // core NATS acknowledges nothing
			<-ended
		})
	}
}
