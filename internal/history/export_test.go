package history

// For the tests with packages that import this one.
var (
	Fill       = fill
	AwaitQuiet = awaitQuiet
	CPU        = cpu
)
