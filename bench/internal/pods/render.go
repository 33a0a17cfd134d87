package pods

import (
	"bytes"
	"encoding/hex"
	"encoding/json"
	"fmt"
	"math/bits"
	"math/rand/v2"
	"strconv"
	"time"
)

const (
	workloads = 60
	seed      = 7

	// FirstVersion is the smallest resourceVersion: all versions have as many digits.
	FirstVersion = 100_000_000
	// MaxPods is how many names there are.
	MaxPods = 27 * 27 * 27 * 27 * 27

	born = 1_780_000_000 // the first pods' creation, in seconds since 1970
)

// typeHead is how a pod begins in a watch event, and does not in a list.
const typeHead = `"kind":"Pod","apiVersion":"v1",`

// Renderer writes pods. It is immutable.
type Renderer struct {
	templates [workloads][2]template // by workload; ready, not ready
}

// template is a pod with marks, and where they are.
type template struct {
	text  []byte
	marks []mark
}

type mark struct {
	at   int
	kind byte // index into the marks' texts; then the times
	len  int
}

var markTexts = [...]string{markSuffix, markVolume, markUID, markVersion, markIP, markNode, markContainer}

// New makes a Renderer. All render the same.
func New() (*Renderer, error) {
	r := rand.New(rand.NewPCG(seed, seed))
	out := &Renderer{}
	for i := range out.templates {
		w := newWorkload(r, i)
		for j, ready := range []bool{true, false} {
			text, err := json.Marshal(w.pod(ready))
			if err != nil {
				return nil, fmt.Errorf("pod template: %w", err)
			}
			if !bytes.HasPrefix(text, []byte("{"+typeHead)) {
				return nil, fmt.Errorf("pod template begins with %.60s", text)
			}
			out.templates[i][j] = newTemplate(text)
		}
	}
	return out, nil
}

func newTemplate(text []byte) template {
	t := template{text: text}
	find := func(kind int, what string) {
		for at := 0; ; at += len(what) {
			i := bytes.Index(text[at:], []byte(what))
			if i < 0 {
				return
			}
			at += i
			t.marks = append(t.marks, mark{at: at, kind: byte(kind), len: len(what)})
		}
	}
	for kind, what := range markTexts {
		find(kind, what)
	}
	for n := range times {
		find(len(markTexts)+n, markTime(n).Format(time.RFC3339))
	}
	return t
}

// Version is the resourceVersion of pod n in a fresh list.
func Version(n int) uint64 { return FirstVersion + uint64(n) }

// Append appends pod n as it is at a version.
func (r *Renderer) Append(dst []byte, n int, version uint64) []byte {
	unready := 0
	if mix(uint64(n), version)%8 == 0 {
		unready = 1
	}
	t := &r.templates[n%workloads][unready]
	start := len(dst)
	dst = append(dst, t.text...)
	pod := values(n, version)
	for _, m := range t.marks {
		copy(dst[start+m.at:start+m.at+m.len], pod.text(m.kind))
	}
	return dst
}

// AppendItem appends pod n as an item of a list, without its type.
func (r *Renderer) AppendItem(dst []byte, n int, version uint64) []byte {
	start := len(dst)
	dst = r.Append(dst, n, version)
	rest := copy(dst[start+1:], dst[start+1+len(typeHead):])
	return dst[:start+1+rest]
}

// own is what a pod has of its own.
type own struct {
	suffix, volume [5]byte
	uid            [36]byte
	version        [9]byte
	ip             [14]byte
	node           [3]byte
	container      [64]byte
	times          [times][20]byte
}

func (o *own) text(kind byte) []byte {
	switch kind {
	case 0:
		return o.suffix[:]
	case 1:
		return o.volume[:]
	case 2:
		return o.uid[:]
	case 3:
		return o.version[:]
	case 4:
		return o.ip[:]
	case 5:
		return o.node[:]
	case 6:
		return o.container[:]
	default:
		return o.times[int(kind)-len(markTexts)][:]
	}
}

func values(n int, version uint64) *own {
	var o own
	a, b := mix(uint64(n), 1), mix(uint64(n), 2)
	letters(o.suffix[:], uint64(n)*7_654_321) // a bijection: prime to 27
	letters(o.volume[:], a)
	hexes(o.uid[:], a, b)
	for i, c := range [...]int{8, 13, 18, 23} {
		o.uid[c] = "----"[i]
	}
	strconv.AppendUint(o.version[:0], version, 10)
	ip := append(o.ip[:0], "10."...)
	for _, part := range [...]uint64{a >> 8, a >> 16, b >> 8} {
		if len(ip) > 3 {
			ip = append(ip, '.')
		}
		ip = strconv.AppendUint(ip, 100+part%100, 10)
	}
	strconv.AppendUint(o.node[:0], 100+b%100, 10)
	restarts := version / 64 // a container lives through many updates
	hexes(o.container[:], mix(a, restarts), mix(b, restarts))
	created := born + int64(a%9_000_000)
	stamp(&o.times[timeCreated], created)
	stamp(&o.times[timeStarted], created+int64(b%20))
	stamp(&o.times[timeReady], created+int64(b%20)+int64(version%100_000_000))
	return &o
}

func stamp(dst *[20]byte, seconds int64) {
	time.Unix(seconds, 0).UTC().AppendFormat(dst[:0], time.RFC3339)
}

func letters(dst []byte, n uint64) {
	for i := range dst {
		dst[i] = "bcdfghjklmnpqrstvwxz2456789"[n%27]
		n /= 27
	}
}

// hexes fills dst with digits.
func hexes(dst []byte, a, b uint64) {
	var raw [32]byte
	for i := range raw {
		if i%8 == 0 {
			a, b = b, mix(a, b)
		}
		raw[i] = byte(b >> (i % 8 * 8))
	}
	var text [64]byte
	hex.Encode(text[:], raw[:])
	copy(dst, text[:])
}

// mix makes a number of two in which neither shows.
func mix(a, b uint64) uint64 {
	high, low := bits.Mul64(a^0x9e3779b97f4a7c15, b^0xbf58476d1ce4e5b9^bits.RotateLeft64(a, 29))
	return (high ^ low) * 0x94d049bb133111eb
}
