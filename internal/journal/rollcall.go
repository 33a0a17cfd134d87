package journal

import (
	"context"
	"crypto/rand"
	"encoding/json"
	"errors"
	"fmt"
	"time"

	"github.com/nats-io/nats.go"
)

// Present is a replica that answers.
type Present struct {
	Replica string `json:"replica"`
	Last    uint64 `json:"last"` // sequence of the last entry in its directory
}

func (j *Client) replicasSubject() string { return "watcherd.replicas." + j.Stream }

// answerTo is what an answer is authenticated with. Any client may ask, so it is no header of a message in a stream.
func (j *Client) answerTo(question []byte) []byte {
	return append([]byte(j.replicasSubject()+" "), question...)
}

// Answer answers those who Ask, until the client is closed. State may be called from any goroutine.
func (j *Client) Answer(state func() Present) error {
	_, err := j.conn.Subscribe(j.replicasSubject(), func(m *nats.Msg) {
		text, err := json.Marshal(state())
		if err == nil {
			err = m.Respond(j.Keys.seal(text, j.answerTo(m.Data)))
		}
		if err != nil && !j.conn.IsClosed() {
			j.Log.Debug("another replica gets no answer", "error", err)
		}
	})
	if err != nil {
		return fmt.Errorf("subscribe to %s: %w", j.replicasSubject(), err)
	}
	return nil
}

// Ask returns the replicas that answer within wait, this one included. An answer of a client without the key counts for none.
func (j *Client) Ask(ctx context.Context, wait time.Duration) ([]Present, error) {
	ctx, cancel := context.WithTimeout(ctx, wait)
	defer cancel()
	inbox := j.conn.NewInbox()
	answers, err := j.conn.SubscribeSync(inbox)
	if err != nil {
		return nil, err
	}
	defer func() { _ = answers.Unsubscribe() }()
	question := []byte(rand.Text()) // so that an answer is not an older one
	if err := j.conn.PublishRequest(j.replicasSubject(), inbox, question); err != nil {
		return nil, err
	}
	var all []Present
	for {
		m, err := answers.NextMsgWithContext(ctx)
		if errors.Is(err, context.DeadlineExceeded) {
			return all, nil
		}
		if errors.Is(err, nats.ErrNoResponders) { // of any client
			continue
		}
		if err != nil {
			return nil, err
		}
		for _, key := range j.Keys.list {
			var p Present
			if text, err := j.Keys.open(key.id, m.Data, j.answerTo(question)); err == nil && json.Unmarshal(text, &p) == nil {
				all = append(all, p)
				break
			}
		}
	}
}
