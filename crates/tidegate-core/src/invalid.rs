//! What is said of a bad option: which, what it was given, and what it takes.

use std::fmt;

/// An option, a name or a part of a request that cannot be taken.
///
/// Spec: BI-1. Nothing has been changed when one of these is returned.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{option}: {given} is not allowed: {allowed}")]
#[non_exhaustive]
pub struct Invalid {
    /// The option, as it is called where it is set.
    pub option: String,
    /// The value that was given, cut where it is long.
    pub given: String,
    /// What would have been taken.
    pub allowed: String,
}

impl Invalid {
    /// Says that `option` was given `given` and takes `allowed`.
    pub fn new(option: impl Into<String>, given: impl fmt::Debug, allowed: impl Into<String>) -> Self {
        Self { option: option.into(), given: shortened(&format!("{given:?}")), allowed: allowed.into() }
    }

    /// The same under another option's name.
    #[must_use]
    pub fn of(self, option: impl Into<String>) -> Self {
        Self { option: option.into(), ..self }
    }
}

/// The longest part of a given value that an error repeats, in characters.
const SHOWN: usize = 120;

fn shortened(text: &str) -> String {
    let mut characters = text.chars();
    let shown: String = characters.by_ref().take(SHOWN).collect();
    if characters.next().is_none() { shown } else { format!("{shown}…") }
}
