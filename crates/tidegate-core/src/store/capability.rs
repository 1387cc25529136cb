//! What a store declares that it can do.

use std::fmt;

/// Something that a store can do beyond the required operations.
///
/// Spec: ST-19.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
#[non_exhaustive]
pub enum Capability {
    /// Leases: a bound on concurrency.
    Leases,
    /// Limits that move with outcomes; needs leases.
    Adaptive,
    /// Rules split by identities.
    Scoped,
    /// Settling costs and observing what a server says of its own quota.
    Corrections,
    /// Circuit state.
    Circuit,
    /// Snapshots, and setting things right.
    Operators,
    /// Telling lost state from expired.
    Epoch,
    /// Pushing what happens. An optimisation.
    Wake,
    /// Deciding without waiting. An optimisation.
    Sync,
    /// All of a driver's work in one step, each number once. An optimisation.
    Exchange,
}

impl Capability {
    /// All of them.
    pub const ALL: [Self; 10] = [
        Self::Leases,
        Self::Adaptive,
        Self::Scoped,
        Self::Corrections,
        Self::Circuit,
        Self::Operators,
        Self::Epoch,
        Self::Wake,
        Self::Sync,
        Self::Exchange,
    ];

    /// Its name in errors.
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Leases => "leases",
            Self::Adaptive => "adaptive limit",
            Self::Scoped => "scoped",
            Self::Corrections => "corrections",
            Self::Circuit => "circuit",
            Self::Operators => "operators",
            Self::Epoch => "epoch",
            Self::Wake => "wake",
            Self::Sync => "synchronous path",
            Self::Exchange => "exchange",
        }
    }

    const fn bit(self) -> u16 {
        1 << self as u16
    }
}

impl fmt::Display for Capability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// A set of capabilities.
#[derive(Clone, Copy, PartialEq, Eq, Default)]
pub struct Capabilities(u16);

impl Capabilities {
    /// None of them.
    pub const NONE: Self = Self(0);

    /// These and one more.
    #[must_use]
    pub const fn with(self, capability: Capability) -> Self {
        Self(self.0 | capability.bit())
    }

    /// These less one.
    #[must_use]
    pub const fn without(self, capability: Capability) -> Self {
        Self(self.0 & !capability.bit())
    }

    /// Whether it is one of these.
    pub const fn has(self, capability: Capability) -> bool {
        self.0 & capability.bit() != 0
    }
}

impl FromIterator<Capability> for Capabilities {
    fn from_iter<I: IntoIterator<Item = Capability>>(capabilities: I) -> Self {
        capabilities.into_iter().fold(Self::NONE, Self::with)
    }
}

impl fmt::Debug for Capabilities {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_set().entries(Capability::ALL.iter().filter(|capability| self.has(**capability))).finish()
    }
}
