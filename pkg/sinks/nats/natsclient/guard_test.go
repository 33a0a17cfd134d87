package natsclient

import (
	"bytes"
	"errors"
	"io"
	"net"
	"regexp"
	"strconv"
	"strings"
	"testing"
)

// FuzzGuard gives the guard what a server sends, in two parts: it refuses the same as of one part, and passes no line
// that announces a message above the limit, as the client finds lines.
func FuzzGuard(f *testing.F) {
	filler := strings.Repeat("x", 50) + "\r\n"
	for _, seed := range []string{
		"INFO {}\r\nPING\r\nMSG a 1 3\r\nabc\r\n", "HMSG a 1 12 16\r\nNATS/1.0\r\n\r\nabcd\r\n", "MSG a 1 90000000000\r\n", "msg a\t1 b 5\r\nMSG x\r\n", "+OK\r\n-ERR 'x'\r\nPONG\r\n",
		"MSG a 1 1\r\naMSG a 1 50\r\nMSG a 1 90000000000\r\n" + filler, "MSG a 1 1\r\na\nMSG a 1 50\r\nMSG a 1 90000000000\r\n" + filler,
		"-ERR \nMSG a 1 50\r\nMSG a 1 90000000000\r\n" + filler, "MSG a 1 49\r50\nMSG a 1 90000000000\r\n" + filler,
		"MSG a 1 10\r12\n0123456789\r\nMSG a 1 90000000000\r\n",
	} {
		f.Add([]byte(seed), 7)
	}
	f.Fuzz(func(t *testing.T, sent []byte, cut int) {
		cut = max(0, min(cut, len(sent)))
		var whole, parts guarded
		once := whole.accepts(sent)
		if twice := parts.accepts(sent[:cut]) && parts.accepts(sent[cut:]); once != twice {
			t.Fatalf("accepted as a whole: %t, in two parts: %t", once, twice)
		}
		if !once {
			return
		}
		for rest := sent; ; { // as the client reads
			text := argument(rest)
			line, next, ended := bytes.Cut(rest[text:], []byte("\n"))
			if !ended {
				return
			}
			rest = next
			if text > 0 {
				continue
			}
			line, _, _ = bytes.Cut(line, []byte("\r"))
			if !message.Match(line) {
				if len(line) > 0 && strings.ContainsRune("MmHh", rune(line[0])) {
					return // the client refuses it
				}
				continue
			}
			fields := strings.Fields(string(line))
			size, err := strconv.Atoi(fields[len(fields)-1])
			if err != nil || size < 0 || size > maxMessage {
				t.Fatalf("%q is accepted", line)
			}
			if size >= len(rest) {
				return
			}
			_, rest, ended = bytes.Cut(rest[size+1:], []byte("\n")) // one byte behind a message may be any
			if !ended {
				return
			}
		}
	})
}

// TestFailedHandshake: nothing is sent to a server that was not verified, whatever the client writes next.
func TestFailedHandshake(t *testing.T) {
	near, far := net.Pipe()
	defer far.Close()
	unverified := errors.New("who is this?")
	g := &guarded{Conn: near, upgrade: true, handshake: func(net.Conn) (net.Conn, error) { return nil, unverified }}
	if _, err := g.Write([]byte("CONNECT {}\r\n")); !errors.Is(err, unverified) {
		t.Errorf("the first write: %v", err)
	}
	received := make(chan []byte, 1)
	go func() {
		all, _ := io.ReadAll(far)
		received <- all
	}()
	if _, err := g.Write([]byte("PING\r\n")); err == nil {
		t.Error("the second write succeeds")
	}
	near.Close()
	if all := <-received; len(all) > 0 {
		t.Errorf("%q was sent", all)
	}
}

var message = regexp.MustCompile(`^(?i)h?msg[ \t]`)

// argument is the length of a line up to the second byte of its argument, the first of which may be any; 0 for what is
// neither INFO nor -ERR.
func argument(b []byte) int {
	for _, verb := range []string{"INFO", "-ERR"} {
		if len(b) < len(verb) || !strings.EqualFold(string(b[:len(verb)]), verb) {
			continue
		}
		if text := bytes.TrimLeft(b[len(verb):], " \t"); len(text) > 0 && len(text) < len(b)-len(verb) {
			return len(b) - len(text) + 1
		}
	}
	return 0
}
