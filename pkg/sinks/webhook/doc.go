// Package webhook sends events to an HTTP endpoint: CloudEvents in structured,
// batch or binary mode, plain JSON, or bodies; signed as Standard Webhooks asks for.
//
// Guarantees:
//
//   - One attempt a Write. The answer is classed and left to the worker: 2xx is
//     accepted; 408, 409, 425, 429, 5xx and every failure of network or TLS is
//     retried, with the endpoint's Retry-After; 400 and 422 blame the event, 413 its size;
//     all else (401, 403, 404, 410, redirects) pauses the sink. A 404 is retried for a
//     minute first: a gateway answers so while its backends are replaced.
//   - With `results` a 2xx answer holds a results document ([sinks.ParseResults]) and only
//     the events that it calls accepted are. Without the document none is.
//   - With `accept` an expression over the answer decides whether it accepts the events. One
//     that fails is a retry.
//   - The same event carries the same id on every attempt: `id` or `ce-id`,
//     `webhook-id` and `Idempotency-Key`. A batch's is derived from its events', so it
//     is the same as long as the batch is.
//   - No redirect is followed, no proxy of the environment used, and with denyPrivate
//     no connection made to an address that is not public, for any DNS answer.
//   - Secrets and TLS files are read again when they change. While new ones cannot
//     be read or do not fit together, the old ones stay in use.
//   - Errors name the host and the status and quote at most 256 characters of the
//     answer, with every secret in it masked, and what may be one in the path of the URL.
//     They hold no path, query or header.
//
// Caveats: an endpoint that accepted an event and failed to respond gets it again.
// One that works on a request after its client has gone may accept its events late. A
// batch that is refused with 400, 413 or 422 is refused as a whole; the worker takes it
// apart. Accepted means that the endpoint said so.
package webhook
