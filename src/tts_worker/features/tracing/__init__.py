"""Export of OpenTelemetry traces."""
