package e2e

import (
	"bufio"
	"fmt"
	"io"
	"net/http"
	"strconv"
	"strings"
	"testing"
)

// httpGet reads an answer of the daemon, in one of the accepted forms; ok is false if there
// was none or it was not 200.
func httpGet(t testing.TB, url string, accept ...string) (body string, ok bool) {
	t.Helper()
	req, err := http.NewRequestWithContext(t.Context(), http.MethodGet, url, http.NoBody)
	if err != nil {
		t.Fatal(err)
	}
	req.Header["Accept"] = accept
	client := &http.Client{Transport: &http.Transport{DisableKeepAlives: true}}
	resp, err := client.Do(req)
	if err != nil {
		return "", false
	}
	defer resp.Body.Close()
	b, err := io.ReadAll(resp.Body)
	return string(b), err == nil && resp.StatusCode == http.StatusOK
}

// samples are the daemon's metrics by series: watcherd_x{label="value"}.
type samples map[string]float64

func scrape(t testing.TB, address string) samples {
	t.Helper()
	body, ok := httpGet(t, "http://"+address+"/metrics")
	if !ok {
		return nil
	}
	m := samples{}
	for lines := bufio.NewScanner(strings.NewReader(body)); lines.Scan(); {
		line := lines.Text()
		i := strings.LastIndexByte(line, ' ')
		if i < 0 || line[0] == '#' {
			continue
		}
		if v, err := strconv.ParseFloat(line[i+1:], 64); err == nil {
			m[line[:i]] = v
		}
	}
	return m
}

// label is the value of a label in the only series of a family whose value is 1.
func (m samples) label(family string) string {
	for series, v := range m {
		if rest, ok := strings.CutPrefix(series, family+"{"); ok && v == 1 {
			_, value, _ := strings.Cut(rest, `"`)
			value, _, _ = strings.Cut(value, `"`)
			return value
		}
	}
	return ""
}

// drained waits until every sink has accepted everything that is committed. A last
// object that has arrived is no sign of that: order holds per object.
func drained(t testing.TB, address string) {
	t.Helper()
	var waiting samples
	eventually(t, func() bool {
		all := scrape(t, address)
		waiting = samples{}
		for series, n := range all {
			if strings.HasPrefix(series, "watcherd_sink_queue_length{") && n > 0 {
				waiting[series] = n
			}
		}
		return all != nil && len(waiting) == 0
	}, func() string { return fmt.Sprintf("events are waiting: %v", waiting) })
}
