//! What is made of many numbers.

/// What lies at a part of what is sorted: 0.5 is the median. 0 where there is nothing.
pub(crate) fn percentile(values: &[f64], part: f64) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_unstable_by(f64::total_cmp);
    // A part of 0 to 1 of a length that fits.
    #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss)]
    let at = (sorted.len().saturating_sub(1) as f64 * part).round() as usize;
    sorted.get(at).copied().unwrap_or(0.0)
}

pub(crate) fn median(values: &[f64]) -> f64 {
    percentile(values, 0.5)
}

/// Jain's index of fairness: 1 where all have the same, 1/n where one has it all.
pub(crate) fn jain(shares: &[f64]) -> f64 {
    let sum: f64 = shares.iter().sum();
    let squares: f64 = shares.iter().map(|share| share * share).sum();
    // Counts of tasks are small.
    #[allow(clippy::cast_precision_loss)]
    let count = shares.len() as f64;
    if squares > 0.0 { sum * sum / (count * squares) } else { 0.0 }
}

/// An integer that is small enough to be told exactly.
#[allow(clippy::cast_precision_loss)]
pub(crate) fn float(number: u64) -> f64 {
    number as f64
}
