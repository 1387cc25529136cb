//! Fractions as whole parts per million, so that the same arithmetic gives the same answer in every language.

use std::fmt;

use crate::Invalid;

/// A factor, share or threshold, kept as whole parts per million and rounded once, when it is built.
///
/// So `ceil(0.07 × 100)` is 7, whoever computes it.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Fraction(u32);

const MILLION: u32 = 1_000_000;

impl Fraction {
    /// Nothing.
    pub const ZERO: Self = Self(0);
    /// A half.
    pub const HALF: Self = Self(MILLION / 2);
    /// The whole.
    pub const ONE: Self = Self(MILLION);

    /// Rounds `value` to parts per million; it must lie in 0 to 1 and be a number. `option` is what an error calls it.
    ///
    /// # Errors
    /// [`Invalid`] for a value outside 0 to 1, or one that is no number.
    pub fn new(option: &str, value: f64) -> Result<Self, Invalid> {
        if !(0.0..=1.0).contains(&value) {
            return Err(Invalid::new(option, value, "a number from 0 to 1"));
        }
        // In range by the check above: at most 1,000,000 and not negative.
        #[allow(clippy::cast_possible_truncation, clippy::cast_sign_loss)]
        let parts = (value * f64::from(MILLION)).round() as u32;
        Ok(Self(parts))
    }

    /// The fraction of this many parts per million; more than a million is the whole.
    pub const fn from_ppm(ppm: u32) -> Self {
        Self(if ppm > MILLION { MILLION } else { ppm })
    }

    /// Parts per million.
    pub const fn ppm(self) -> u32 {
        self.0
    }

    /// `floor(fraction × of)`.
    pub fn floor_of(self, of: u32) -> u32 {
        // At most `of`, since the fraction is at most one.
        u32::try_from(u64::from(self.0) * u64::from(of) / u64::from(MILLION)).unwrap_or(of)
    }

    /// `ceil(fraction × of)`.
    pub fn ceil_of(self, of: u32) -> u32 {
        u32::try_from((u64::from(self.0) * u64::from(of)).div_ceil(u64::from(MILLION))).unwrap_or(of)
    }
}

impl fmt::Display for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", f64::from(self.0) / f64::from(MILLION))
    }
}

impl fmt::Debug for Fraction {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_share_is_rounded_once_and_then_exact() {
        assert_eq!(Fraction::new("share", 0.07).unwrap().ceil_of(100), 7);
        assert_eq!(Fraction::new("share", 0.25).unwrap().ceil_of(21), 6);
        assert_eq!(Fraction::HALF.floor_of(7), 3);
        assert_eq!(Fraction::ONE.ceil_of(u32::MAX), u32::MAX);
    }

    #[test]
    fn bi_2_what_is_no_fraction_is_refused() {
        for bad in [f64::NAN, f64::INFINITY, -0.1, 1.000_001] {
            assert!(Fraction::new("share", bad).is_err(), "{bad}");
        }
    }
}
