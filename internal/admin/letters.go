package admin

import (
	"net/http"
	"net/url"
	"slices"
	"strconv"
	"strings"

	"github.com/watcherd/watcherd/internal/selector"
)

const (
	defaultLetters = 100
	maxLetters     = 1000

	// maxLetterBytes bounds the events and the names of a page, give or take one.
	maxLetterBytes = 8 << 20
)

// listLetters answers with a page of a sink's dead letters: ?limit= of them after
// the position ?after=, those that ?type=, ?resource=, ?namespace=, ?name=, ?reason=, ?from= and
// ?to= select, with ?events=true with their events.
func (s *Server) listLetters(r *http.Request, query url.Values) (any, error) {
	after := uint64(0)
	limit, err := number(query, "limit", defaultLetters, maxLetters)
	if err != nil {
		return nil, err
	}
	if text := query.Get("after"); text != "" {
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			return nil, problemf(http.StatusBadRequest, "after must be a position")
		}
	}
	events := false
	if query.Get("events") != "" {
		if events, err = boolean(query, "events"); err != nil {
			return nil, err
		}
	}
	f := LetterFilter{Types: values(query, "type"), Resource: query.Get("resource"), Namespace: query.Get("namespace"), Name: query.Get("name"), Reason: query.Get("reason")}
	if f.From, f.To, err = period(query); err != nil {
		return nil, err
	}
	keep, err := s.selects(&f)
	if err != nil {
		return nil, err
	}
	page, size := DeadLetterList{Items: []DeadLetter{}}, 0
	for looked := 0; looked < maxLetters; {
		letters, err := s.cfg.Letters.List(r.PathValue("sink"), after, limit-len(page.Items), events)
		if err != nil {
			return nil, err
		}
		for i := range letters {
			after = letters[i].Position
			if keep(&letters[i]) {
				size += len(letters[i].Event) + len(letters[i].Subject) + len(letters[i].Name)
				page.Items = append(page.Items, letters[i])
			}
			if size > maxLetterBytes {
				break
			}
		}
		looked += len(letters)
		page.Continue = after
		if len(letters) == 0 {
			page.Continue = 0
			break
		}
		if len(page.Items) >= limit || size > maxLetterBytes {
			break
		}
	}
	return page, nil
}

// selects returns what decides whether a filter selects a dead letter.
func (s *Server) selects(f *LetterFilter) (func(*DeadLetter) bool, error) {
	for _, t := range f.Types {
		if err := checkType(t); err != nil {
			return nil, err
		}
	}
	var resources []selector.Resource
	if f.Resource != "" {
		p, err := selector.ParseResource(f.Resource)
		if err != nil {
			return nil, problemf(http.StatusBadRequest, "resource: %v", err)
		}
		resources = append(resources, p)
		// A short name or a kind. What is unknown counts as spelled: a dead letter may outlive its watch and the history.
		if r, _, err := s.resource(f.Resource); err == nil && r.Name() != p.Name() {
			resources = append(resources, r)
		}
	}
	return func(l *DeadLetter) bool {
		return allows(f.Types, l.Type) &&
			(resources == nil || l.Resource != nil && slices.ContainsFunc(resources, func(p selector.Resource) bool { return p.Matches(*l.Resource) })) &&
			(f.Namespace == "" || l.Namespace == f.Namespace) && (f.Name == "" || l.Name == f.Name) &&
			strings.Contains(l.Reason, f.Reason) &&
			(f.From.IsZero() || !l.Last.Before(f.From)) && (f.To.IsZero() || !l.Last.After(f.To))
	}, nil
}

func onLetters(act func(l Letters, sink string, positions []uint64) (int, error)) func(*Server) handler {
	return plain(func(s *Server, w http.ResponseWriter, r *http.Request) error {
		return s.settleLetters(w, r, act)
	})
}

// settleLetters acts on the letters that the request names, or on all there are now.
func (s *Server) settleLetters(w http.ResponseWriter, r *http.Request, act func(Letters, string, []uint64) (int, error)) error {
	var in LettersRequest
	if err := decode(r, &in); err != nil {
		return err
	}
	sink, ways := r.PathValue("sink"), 0
	for _, given := range []bool{in.All, len(in.Positions) > 0, in.Filter != nil} {
		if given {
			ways++
		}
	}
	if ways != 1 {
		return problemf(http.StatusBadRequest, "name positions of dead letters, or a filter, or say all")
	}
	slices.Sort(in.Positions)
	in.Positions = slices.Compact(in.Positions)
	keep := func(l *DeadLetter) bool {
		_, found := slices.BinarySearch(in.Positions, l.Position)
		return found
	}
	if in.All {
		in.Filter = &LetterFilter{}
	}
	if in.Filter != nil {
		var err error
		if keep, err = s.selects(in.Filter); err != nil {
			return err
		}
	}
	if in.Filter != nil || in.DryRun || in.Count != nil {
		// Collected first: a letter that is retried and refused again is a new one.
		var err error
		if in.Positions, err = s.letterPositions(r, sink, keep); err != nil {
			return err
		}
	}
	if in.DryRun {
		return answer(w, Progress{Count: len(in.Positions), Done: true})
	}
	if n := len(in.Positions); in.Count != nil && *in.Count != n {
		return problemf(http.StatusConflict, "%d dead letters match by now, not %d: count them again", n, *in.Count)
	}
	total := 0
	for chunk := range slices.Chunk(in.Positions, maxLetters) {
		if err := r.Context().Err(); err != nil {
			return err
		}
		n, err := act(s.cfg.Letters, sink, chunk)
		if err != nil {
			return err
		}
		total += n
	}
	if total == 0 && in.Filter == nil {
		return problemf(http.StatusNotFound, "sink %s has no dead letters at these positions", sink)
	}
	return answer(w, Progress{Count: total, Done: true})
}

func (s *Server) letterPositions(r *http.Request, sink string, keep func(*DeadLetter) bool) ([]uint64, error) {
	var positions []uint64
	for after := uint64(0); ; {
		letters, err := s.cfg.Letters.List(sink, after, maxLetters, false)
		if err == nil {
			err = r.Context().Err()
		}
		if err != nil || len(letters) == 0 {
			return positions, err
		}
		for i := range letters {
			if keep(&letters[i]) {
				positions = append(positions, letters[i].Position)
			}
		}
		after = letters[len(letters)-1].Position
	}
}
