// Command consumer reads a Kafka topic with another library than watcherd's. Its argument is a JSON document (spec). It
// prints a JSON document a record and ends with the last one.
package main

import (
	"context"
	"encoding/json"
	"errors"
	"os"
	"slices"
	"time"

	"github.com/segmentio/kafka-go"

	"github.com/watcherd/watcherd/internal/testservers/servers/program"
)

// spec is what internal/testservers gives.
type spec struct {
	Broker, Topic string
	Records       int // to read
}

// record is what is printed of one.
type record struct {
	Partition int
	Balanced  int // the partition that Java's producer would have chosen for the key, by this library
	Key       string
	Value     []byte
	Headers   map[string]string
}

func main() { program.Main(run) }

func run(ctx context.Context, s *spec) error {
	ctx, cancel := context.WithTimeout(ctx, time.Minute)
	defer cancel()
	conn, err := kafka.DialContext(ctx, "tcp", s.Broker)
	if err != nil {
		return err
	}
	defer conn.Close()
	found, err := conn.ReadPartitions(s.Topic)
	if err != nil {
		return err
	}
	partitions := make([]int, len(found))
	for i, p := range found {
		partitions[i] = p.ID
	}
	slices.Sort(partitions) // the balancer chooses by place
	records, failed := make(chan kafka.Message), make(chan error, len(partitions))
	for _, p := range partitions {
		go func() {
			r := kafka.NewReader(kafka.ReaderConfig{Brokers: []string{s.Broker}, Topic: s.Topic, Partition: p, MaxWait: 100 * time.Millisecond})
			defer r.Close()
			for {
				m, err := r.ReadMessage(ctx)
				if err != nil {
					failed <- err
					return
				}
				records <- m
			}
		}()
	}
	out := json.NewEncoder(os.Stdout)
	for range s.Records {
		select {
		case m := <-records:
			r := record{Partition: m.Partition, Key: string(m.Key), Value: m.Value, Headers: map[string]string{}}
			r.Balanced = kafka.Murmur2Balancer{}.Balance(m, partitions...)
			for _, h := range m.Headers {
				r.Headers[h.Key] = string(h.Value)
			}
			if err := out.Encode(r); err != nil {
				return err
			}
		case err := <-failed:
			return errors.Join(errors.New("not all records came"), err)
		}
	}
	return nil
}
