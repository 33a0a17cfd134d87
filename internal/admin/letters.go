package admin

import (
	"net/http"
	"slices"
	"strconv"
)

const (
	defaultLetters = 100
	maxLetters     = 1000
)

// listLetters answers with a page of a sink's dead letters: ?limit= of them after
// the position ?after=.
func (s *Server) listLetters(w http.ResponseWriter, r *http.Request) error {
	query := r.URL.Query()
	limit, after := defaultLetters, uint64(0)
	var err error
	if text := query.Get("limit"); text != "" {
		if limit, err = strconv.Atoi(text); err != nil || limit < 1 || limit > maxLetters {
			return problemf(http.StatusBadRequest, "limit must be a number from 1 to %d", maxLetters)
		}
	}
	if text := query.Get("after"); text != "" {
		if after, err = strconv.ParseUint(text, 10, 64); err != nil {
			return problemf(http.StatusBadRequest, "after must be a position")
		}
	}
	letters, err := s.cfg.Letters.List(r.PathValue("sink"), after, limit)
	if err != nil {
		return err
	}
	page := DeadLetterList{Items: letters}
	if page.Items == nil {
		page.Items = []DeadLetter{}
	}
	if len(letters) == limit {
		page.Continue = letters[len(letters)-1].Position
	}
	return answer(w, page)
}

func (s *Server) retryLetters(w http.ResponseWriter, r *http.Request) error {
	return s.settleLetters(w, r, s.cfg.Letters.Retry)
}

func (s *Server) dropLetters(w http.ResponseWriter, r *http.Request) error {
	return s.settleLetters(w, r, s.cfg.Letters.Drop)
}

// settleLetters acts on the letters that the request names, or on all there are now.
func (s *Server) settleLetters(w http.ResponseWriter, r *http.Request, act func(string, []uint64) (int, error)) error {
	var in LettersRequest
	if err := decode(r, &in); err != nil {
		return err
	}
	sink, positions := r.PathValue("sink"), in.Positions
	if in.All == (len(positions) > 0) {
		return problemf(http.StatusBadRequest, "name positions of dead letters, or say all")
	}
	if in.All {
		// Collected first: a letter that is retried and refused again is a new one.
		var err error
		if positions, err = s.letterPositions(sink); err != nil {
			return err
		}
	}
	total := 0
	for chunk := range slices.Chunk(positions, maxLetters) {
		if err := r.Context().Err(); err != nil {
			return err
		}
		n, err := act(sink, chunk)
		if err != nil {
			return err
		}
		total += n
	}
	if total == 0 && !in.All {
		return problemf(http.StatusNotFound, "sink %s has no dead letters at these positions", sink)
	}
	return answer(w, Progress{Count: total, Done: true})
}

func (s *Server) letterPositions(sink string) ([]uint64, error) {
	var positions []uint64
	for after := uint64(0); ; {
		letters, err := s.cfg.Letters.List(sink, after, maxLetters)
		if err != nil || len(letters) == 0 {
			return positions, err
		}
		for i := range letters {
			positions = append(positions, letters[i].Position)
		}
		after = letters[len(letters)-1].Position
	}
}
