//! A package for tests that need the OpenTelemetry SDK, on which the workspace does not depend.
