//! Which node of a cluster serves which key.

use std::sync::Arc;

use redis::Value;

use super::url::Address;

/// How many slots a cluster has.
pub(crate) const SLOTS: u16 = 16384;

/// The slot of a key or a shard channel: that of its hash tag, where it has one.
pub(crate) fn slot_of(key: &[u8]) -> u16 {
    let tagged = key.iter().position(|byte| *byte == b'{').and_then(|open| {
        let rest = &key[open + 1..];
        rest.iter().position(|byte| *byte == b'}').filter(|close| *close > 0).map(|close| &rest[..close])
    });
    crc16(tagged.unwrap_or(key)) % SLOTS
}

/// CRC-16/XMODEM, as the cluster specification has it.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| {
            if crc & 0x8000 == 0 { crc << 1 } else { (crc << 1) ^ 0x1021 }
        })
    })
}

/// Who serves what, as one node saw it.
#[derive(Clone, Debug, Default)]
pub(crate) struct Slots {
    /// Ascending, apart.
    ranges: Vec<Range>,
}

#[derive(Clone, Debug)]
struct Range {
    first: u16,
    last: u16,
    primary: Arc<Address>,
}

impl Slots {
    /// Reads the answer to `CLUSTER SLOTS` of the node at `asked`: nodes that do not know their own address leave it out.
    pub(crate) fn read(answer: &Value, asked: &Address) -> Option<Self> {
        let Value::Array(entries) = answer else { return None };
        let mut ranges = Vec::with_capacity(entries.len());
        for entry in entries {
            let Value::Array(parts) = entry else { return None };
            let [first, last, primary, ..] = parts.as_slice() else { return None };
            let (first, last) = (slot(first)?, slot(last)?);
            if first > last {
                return None;
            }
            ranges.push(Range { first, last, primary: Arc::new(node(primary, asked)?) });
        }
        ranges.sort_by_key(|range| range.first);
        let apart = ranges.windows(2).all(|pair| pair[0].last < pair[1].first);
        (apart && !ranges.is_empty()).then_some(Self { ranges })
    }

    pub(crate) fn primary(&self, slot: u16) -> Option<&Arc<Address>> {
        let next = self.ranges.partition_point(|range| range.first <= slot);
        let range = self.ranges.get(next.checked_sub(1)?)?;
        (slot <= range.last).then_some(&range.primary)
    }

    /// Every primary, once.
    pub(crate) fn primaries(&self) -> Vec<Arc<Address>> {
        let mut primaries: Vec<Arc<Address>> = Vec::new();
        for range in &self.ranges {
            if !primaries.contains(&range.primary) {
                primaries.push(range.primary.clone());
            }
        }
        primaries
    }

    /// The same with one slot moved.
    pub(crate) fn with(&self, slot: u16, primary: Address) -> Self {
        let mut ranges = Vec::with_capacity(self.ranges.len() + 2);
        for range in &self.ranges {
            if slot < range.first || range.last < slot {
                ranges.push(range.clone());
                continue;
            }
            if range.first < slot {
                ranges.push(Range { last: slot - 1, ..range.clone() });
            }
            if slot < range.last {
                ranges.push(Range { first: slot + 1, ..range.clone() });
            }
        }
        ranges.push(Range { first: slot, last: slot, primary: Arc::new(primary) });
        ranges.sort_by_key(|range| range.first);
        Self { ranges }
    }
}

fn slot(value: &Value) -> Option<u16> {
    match value {
        Value::Int(slot) => u16::try_from(*slot).ok().filter(|slot| *slot < SLOTS),
        _ => None,
    }
}

fn node(value: &Value, asked: &Address) -> Option<Address> {
    let Value::Array(parts) = value else { return None };
    let [host, Value::Int(port), ..] = parts.as_slice() else { return None };
    let host = match host {
        Value::Nil => "",
        host => text(host)?,
    };
    Some(Address::Tcp { host: host_or(host, asked)?, port: u16::try_from(*port).ok()? })
}

/// Reads where a redirection of the node at `asked` points.
pub(crate) fn redirection(address: &str, asked: &Address) -> Option<Address> {
    let (host, port) = address.rsplit_once(':')?;
    Some(Address::Tcp { host: host_or(host, asked)?, port: port.parse().ok()? })
}

fn host_or(host: &str, asked: &Address) -> Option<String> {
    match (host, asked) {
        ("" | "?", Address::Tcp { host, .. }) => Some(host.clone()),
        ("" | "?", Address::Unix(_)) => None,
        (host, _) => Some(host.to_owned()),
    }
}

pub(crate) fn text(value: &Value) -> Option<&str> {
    match value {
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok(),
        Value::SimpleString(text) => Some(text),
        Value::VerbatimString { text, .. } => Some(text),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_has_the_slot_of_its_tag() {
        // The check value of the cluster specification.
        assert_eq!(crc16(b"123456789"), 0x31c3);
        assert_eq!(slot_of(b"foo"), 12182);
        assert_eq!(slot_of(b"a{foo}b{c}"), slot_of(b"foo"));
        assert_eq!(slot_of(b"{}foo"), crc16(b"{}foo") % SLOTS);
        assert_eq!(slot_of(b"foo{{bar}}zap"), slot_of(b"{bar"));
        assert_eq!(slot_of(b"{foo"), crc16(b"{foo") % SLOTS);
    }

    fn address(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    fn entry(first: i64, last: i64, host: Value, port: i64) -> Value {
        let node = Value::Array(vec![host, Value::Int(port), Value::SimpleString("name".to_owned())]);
        Value::Array(vec![Value::Int(first), Value::Int(last), node])
    }

    #[test]
    fn slots_are_read_and_moved() {
        let asked = address("near", 1);
        let answer = Value::Array(vec![
            entry(8000, 16383, Value::SimpleString("far".to_owned()), 2),
            entry(0, 7998, Value::Nil, 1),
        ]);
        let slots = Slots::read(&answer, &asked).unwrap();
        assert_eq!(slots.primary(0).map(|a| a.to_string()).as_deref(), Some("near:1"));
        assert_eq!(slots.primary(7998).map(|a| a.to_string()).as_deref(), Some("near:1"));
        assert!(slots.primary(7999).is_none());
        assert_eq!(slots.primary(16383).map(|a| a.to_string()).as_deref(), Some("far:2"));
        assert_eq!(slots.primaries().len(), 2);
        for slot in [0, 4000, 7998, 7999, 8000, 16383] {
            let moved = slots.with(slot, address("new", 3));
            for other in 0..SLOTS {
                let expected = if other == slot {
                    Some("new:3".to_owned())
                } else {
                    slots.primary(other).map(|a| a.to_string())
                };
                assert_eq!(moved.primary(other).map(|a| a.to_string()), expected, "{slot} {other}");
            }
        }
    }

    #[test]
    fn nonsense_is_no_map() {
        let asked = address("near", 1);
        let host = || Value::SimpleString("far".to_owned());
        for answer in [
            Value::Nil,
            Value::Array(vec![]),
            Value::Array(vec![entry(5, 4, host(), 1)]),
            Value::Array(vec![entry(0, 16384, host(), 1)]),
            Value::Array(vec![entry(0, 5, host(), 1), entry(5, 6, host(), 1)]),
            Value::Array(vec![entry(0, 5, host(), 70000)]),
        ] {
            assert!(Slots::read(&answer, &asked).is_none(), "{answer:?}");
        }
    }

    #[test]
    fn redirections_are_read() {
        let asked = address("near", 1);
        assert_eq!(redirection("10.0.0.1:7", &asked), Some(address("10.0.0.1", 7)));
        assert_eq!(redirection("::1:7", &asked), Some(address("::1", 7)));
        assert_eq!(redirection(":7", &asked), Some(address("near", 7)));
        assert_eq!(redirection("?:7", &asked), Some(address("near", 7)));
        assert_eq!(redirection("far", &asked), None);
    }
}
