//! Only a package for tests: the tests need the SDK of OpenTelemetry, which the workspace does not use.
