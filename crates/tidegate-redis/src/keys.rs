//! The keys of an id, all with one hash tag.

use tidegate_core::{DriverId, Id, Identity, RuleKey};

/// The keys of an id. See `lua/README.md` for what they hold.
pub(crate) struct Keys {
    main: String,
}

impl Keys {
    pub(crate) fn of(prefix: &str, id: &Id) -> Self {
        Self { main: format!("{prefix}:{{{id}}}") }
    }

    /// All that is kept of the id but what follows.
    pub(crate) fn main(&self) -> Vec<u8> {
        self.main.clone().into_bytes()
    }

    /// The circuit.
    pub(crate) fn circuit(&self) -> Vec<u8> {
        format!("{}:c", self.main).into_bytes()
    }

    /// The last answer to a driver.
    pub(crate) fn answer(&self, driver: DriverId) -> Vec<u8> {
        format!("{}:x:{}", self.main, driver_name(driver)).into_bytes()
    }

    /// The level of an identity. The key of the rule goes with its length, so that no two can be taken for each other.
    pub(crate) fn identity(&self, rule: &RuleKey, identity: &Identity) -> Vec<u8> {
        let rule = rule.as_str();
        format!("{}:i:{}:{rule}:{identity}", self.main, rule.len()).into_bytes()
    }

    /// What is told to all.
    pub(crate) fn all(&self) -> Vec<u8> {
        format!("{}:all", self.main).into_bytes()
    }

    /// What is told to one driver.
    pub(crate) fn driver(&self, driver: DriverId) -> Vec<u8> {
        format!("{}:{}", self.main, driver_name(driver)).into_bytes()
    }

    /// What the keys of all ids and circuits match, and some of identities and of answers.
    pub(crate) fn pattern(prefix: &str) -> Vec<u8> {
        let mut pattern = String::new();
        for c in prefix.chars() {
            if matches!(c, '*' | '?' | '[' | ']' | '\\' | '^') {
                pattern.push('\\');
            }
            pattern.push(c);
        }
        pattern.push_str(":{*[}c]");
        pattern.into_bytes()
    }

    /// The id whose main key this is, or that of its circuit.
    pub(crate) fn id(prefix: &str, key: &[u8]) -> Option<Id> {
        let key = std::str::from_utf8(key).ok()?;
        let named = key.strip_prefix(prefix)?.strip_prefix(":{")?;
        Id::new(named.strip_suffix("}:c").or_else(|| named.strip_suffix('}'))?).ok()
    }
}

/// A driver's id as it is sent: 32 digits.
pub(crate) fn driver_name(driver: DriverId) -> String {
    format!("{:032x}", driver.0)
}

#[cfg(test)]
#[allow(clippy::unwrap_used)]
mod tests {
    use super::*;

    #[test]
    fn st_20_an_id_is_known_by_its_key_and_by_that_of_its_circuit_alone() {
        let id = Id::new("an id:c").unwrap();
        let keys = Keys::of("p", &id);
        for key in [keys.main(), keys.circuit()] {
            assert_eq!(Keys::id("p", &key), Some(id.clone()));
            assert_eq!(Keys::id("q", &key), None);
        }
        let rule = RuleKey::from("named:r");
        for identity in ["c", "}", "}:c", "{x}:c", ":{x}"] {
            let identity = Identity::new(identity).unwrap();
            assert_eq!(Keys::id("p", &keys.identity(&rule, &identity)), None);
        }
        assert_eq!(Keys::id("p", &keys.answer(DriverId(0xc))), None);
    }
}
