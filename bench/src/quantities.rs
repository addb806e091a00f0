//! Times and rates on the command line.

/// Parses a duration in seconds.
pub(crate) fn seconds(text: &str) -> Result<f64, String> {
    positive(text, 3600.0).map_err(|why| format!("{why}; it is in seconds, such as 0.5"))
}

/// Parses a number of calls per second.
pub(crate) fn rate(text: &str) -> Result<f64, String> {
    positive(text, 1e8).map_err(|why| format!("{why}; it is in calls per second, such as 50000"))
}

fn positive(text: &str, most: f64) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(value) if value > 0.0 && value <= most => Ok(value),
        Ok(value) => Err(format!("{value} is not above 0 and at most {most}")),
        Err(_) => Err(format!("`{text}` is not a number")),
    }
}
