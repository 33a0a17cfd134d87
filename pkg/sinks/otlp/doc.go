// Package otlp sends events as log records to an OTLP receiver over HTTP: an OpenTelemetry Collector,
// Loki, VictoriaLogs, Elastic, SigNoz, Grafana Cloud and others.
//
// Guarantees:
//
//   - Accepted means that the receiver answered 200 and rejected no record. A partial success is a failure:
//     since it does not name the rejected records, the batch is sent again in halves until each has an answer of its own.
//   - One attempt a Write for each request. 408, 429 and 5xx are retried, with the receiver's Retry-After; 400, 413, 422 and
//     rejected records blame an event, which is found by halving; all else (401, 403, 404, redirects) pauses the
//     sink. Every failure of network or TLS is retried.
//   - No redirect is followed, and no proxy of the environment used.
//   - Secrets and TLS files are read again: secrets at each request, files at each connection.
//   - Errors name the host and the status and quote at most 256 characters of the answer, with secrets masked.
//
// Caveats: a 200 is the receiver's word, and what stands behind it is up to the receiver: a Collector
// without a persistent queue loses what it has accepted when it crashes. Delivery is at least once: a request
// without an answer is sent again, with the same event ids, which only some stores recognize.
package otlp
