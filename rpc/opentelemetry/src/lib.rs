//! The tests of this package need the SDK of OpenTelemetry, which the workspace does without. There is nothing else.
