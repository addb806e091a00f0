//! A package only for tests that need the OpenTelemetry SDK, which the workspace does not use.
