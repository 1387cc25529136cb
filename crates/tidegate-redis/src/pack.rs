//! MessagePack, as the scripts read and write it: arrays, whole numbers, bytes and false.

use rmp::{Marker, decode, encode};
use tidegate_core::{Cause, StoreError};

/// Writes what a script reads.
#[derive(Default)]
pub(crate) struct Packer(Vec<u8>);

impl Packer {
    pub(crate) fn with_capacity(bytes: usize) -> Self {
        Self(Vec::with_capacity(bytes))
    }

    pub(crate) fn done(self) -> Vec<u8> {
        self.0
    }

    /// Begins an array of so many.
    pub(crate) fn array(&mut self, len: usize) -> &mut Self {
        // Writing to memory does not fail.
        let _ = encode::write_array_len(&mut self.0, u32::try_from(len).unwrap_or(u32::MAX));
        self
    }

    /// A number below 2^53; a larger one is taken as the largest of those, which no script tells from it.
    pub(crate) fn number(&mut self, number: u64) -> &mut Self {
        let _ = encode::write_uint(&mut self.0, number.min(tidegate_core::time::EXACT - 1));
        self
    }

    /// A list of so many; an empty one is absent, since a table costs a script more than what it holds.
    pub(crate) fn list(&mut self, len: usize) -> &mut Self {
        if len == 0 { self.absent() } else { self.array(len) }
    }

    /// A number that may be below 0.
    pub(crate) fn signed(&mut self, number: i64) -> &mut Self {
        let _ = encode::write_sint(&mut self.0, number);
        self
    }

    /// The number that stands for none.
    pub(crate) fn no_number(&mut self) -> &mut Self {
        let _ = encode::write_sint(&mut self.0, -1);
        self
    }

    pub(crate) fn some_number(&mut self, number: Option<u64>) -> &mut Self {
        match number {
            Some(number) => self.number(number),
            None => self.no_number(),
        }
    }

    pub(crate) fn text(&mut self, text: &str) -> &mut Self {
        let _ = encode::write_str(&mut self.0, text);
        self
    }

    pub(crate) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        // As text, since the scripts' reader knows no bytes.
        let _ = encode::write_str_len(&mut self.0, u32::try_from(bytes.len()).unwrap_or(u32::MAX));
        self.0.extend_from_slice(bytes);
        self
    }

    /// What is absent.
    pub(crate) fn absent(&mut self) -> &mut Self {
        let _ = encode::write_bool(&mut self.0, false);
        self
    }

    pub(crate) fn truth(&mut self, truth: bool) -> &mut Self {
        let _ = encode::write_bool(&mut self.0, truth);
        self
    }

    /// Numbers as a script unpacks them without a table: doubles, in bytes.
    pub(crate) fn doubles(&mut self, doubles: &[f64]) -> &mut Self {
        let bytes: Vec<u8> = doubles.iter().flat_map(|number| number.to_le_bytes()).collect();
        self.bytes(&bytes)
    }

    pub(crate) fn some_text(&mut self, text: Option<&str>) -> &mut Self {
        match text {
            Some(text) => self.text(text),
            None => self.absent(),
        }
    }
}

/// Reads what a script wrote.
pub(crate) struct Reader<'a>(&'a [u8]);

type Read<T> = Result<T, StoreError>;

fn broken<E>(_: E) -> StoreError {
    StoreError::unavailable(Cause::Broken, "an answer that cannot be read")
}

impl<'a> Reader<'a> {
    pub(crate) const fn of(bytes: &'a [u8]) -> Self {
        Self(bytes)
    }

    /// Passes over the beginning of an array, where there is one.
    pub(crate) fn maybe_array(&mut self) -> Read<()> {
        if !self.is_number() {
            self.array()?;
        }
        Ok(())
    }

    fn marker(&self) -> Read<Marker> {
        self.0.first().map(|byte| Marker::from_u8(*byte)).ok_or_else(|| broken(()))
    }

    /// Begins an array.
    pub(crate) fn array(&mut self) -> Read<usize> {
        // A script writes an empty table as either, and mostly has none at all.
        if matches!(self.marker()?, Marker::FixMap(0) | Marker::False) {
            self.0 = &self.0[1..];
            return Ok(0);
        }
        let len = decode::read_array_len(&mut self.0).map_err(broken)?;
        // Each takes a byte at least, so that no room is made for what is not there.
        usize::try_from(len).ok().filter(|len| *len <= self.0.len()).ok_or_else(|| broken(()))
    }

    /// Begins an array of exactly so many.
    pub(crate) fn array_of(&mut self, len: usize) -> Read<()> {
        if self.array()? == len { Ok(()) } else { Err(broken(())) }
    }

    pub(crate) fn number(&mut self) -> Read<u64> {
        self.some_number()?.ok_or_else(|| broken(()))
    }

    pub(crate) fn small(&mut self) -> Read<u32> {
        u32::try_from(self.number()?).map_err(broken)
    }

    /// A number, or none for -1.
    pub(crate) fn some_number(&mut self) -> Read<Option<u64>> {
        let number: i64 = self.signed()?;
        match number {
            -1 => Ok(None),
            number => u64::try_from(number).map(Some).map_err(broken),
        }
    }

    pub(crate) fn signed(&mut self) -> Read<i64> {
        decode::read_int(&mut self.0).map_err(broken)
    }

    /// Whether a number is not 0.
    pub(crate) fn flag(&mut self) -> Read<bool> {
        Ok(self.number()? != 0)
    }

    /// Passes over what is absent; says whether it was.
    pub(crate) fn absent(&mut self) -> Read<bool> {
        let absent = matches!(self.marker()?, Marker::False | Marker::Null);
        if absent {
            self.0 = &self.0[1..];
        }
        Ok(absent)
    }

    pub(crate) fn is_number(&self) -> bool {
        use Marker::{FixNeg, FixPos, I8, I16, I32, I64, U8, U16, U32, U64};
        self.marker().is_ok_and(|marker| {
            matches!(marker, FixPos(_) | FixNeg(_) | U8 | U16 | U32 | U64 | I8 | I16 | I32 | I64)
        })
    }

    pub(crate) fn truth(&mut self) -> Read<bool> {
        decode::read_bool(&mut self.0).map_err(broken)
    }

    /// Bytes, or text, which scripts do not tell apart.
    pub(crate) fn bytes(&mut self) -> Read<&'a [u8]> {
        let len = match self.marker()? {
            Marker::Bin8 | Marker::Bin16 | Marker::Bin32 => {
                decode::read_bin_len(&mut self.0).map_err(broken)?
            }
            _ => decode::read_str_len(&mut self.0).map_err(broken)?,
        };
        let len = usize::try_from(len).map_err(broken)?;
        let (bytes, rest) = self.0.split_at_checked(len).ok_or_else(|| broken(()))?;
        self.0 = rest;
        Ok(bytes)
    }

    pub(crate) fn text(&mut self) -> Read<&'a str> {
        std::str::from_utf8(self.bytes()?).map_err(broken)
    }

    pub(crate) fn some_text(&mut self) -> Read<Option<&'a str>> {
        if self.absent()? { Ok(None) } else { self.text().map(Some) }
    }
}
