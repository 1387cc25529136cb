//! The names that enter from outside: checked once, here, and carried as types from then on.

use std::{borrow::Borrow, fmt, sync::Arc};

use crate::Invalid;

/// Names one limited resource: per provider, per API key, per tenant, as the caller chooses. Not a secret: it is shown
/// in metrics.
///
/// 1 to 200 bytes, no control characters, no `{` or `}`. A cheap clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id(Arc<str>);

/// Names a class, a rule or a scope: 1 to 64 of `A-Z a-z 0-9 _ . -`. A cheap clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Arc<str>);

/// One value of a scope (`acme` of `tenant`): any UTF-8 of 1 to 256 bytes. A cheap clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Identity(Arc<str>);

/// Who holds a lease, as people see it in snapshots: 1 to 128 bytes, no control characters. A cheap clone.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Owner(Arc<str>);

impl Id {
    /// Checks an id.
    ///
    /// # Errors
    /// [`Invalid`] for one that is empty, longer than 200 bytes, or has a control character or a brace.
    pub fn new(id: impl AsRef<str>) -> Result<Self, Invalid> {
        let id = id.as_ref();
        let fits = within(id, 200) && !id.chars().any(|c| c.is_control() || c == '{' || c == '}');
        fits.then(|| Self(id.into()))
            .ok_or_else(|| Invalid::new("id", id, "1 to 200 bytes without control characters, `{` or `}`"))
    }
}

impl Name {
    /// Checks the name of a `what` (a class, a rule, a scope), which an error then calls by that word.
    ///
    /// # Errors
    /// [`Invalid`] for one that is empty, longer than 64 characters, or has a character outside `A-Z a-z 0-9 _ . -`.
    pub fn new(what: &str, name: impl AsRef<str>) -> Result<Self, Invalid> {
        let name = name.as_ref();
        let fits = within(name, 64)
            && name.bytes().all(|b| b.is_ascii_alphanumeric() || matches!(b, b'_' | b'.' | b'-'));
        fits.then(|| Self(name.into()))
            .ok_or_else(|| Invalid::new(what, name, "1 to 64 of A-Z a-z 0-9 _ . -"))
    }
}

impl Identity {
    /// Checks an identity of a scope.
    ///
    /// # Errors
    /// [`Invalid`] for one that is empty or longer than 256 bytes.
    pub fn new(identity: impl AsRef<str>) -> Result<Self, Invalid> {
        let identity = identity.as_ref();
        within(identity, 256)
            .then(|| Self(identity.into()))
            .ok_or_else(|| Invalid::new("identity", identity, "UTF-8 of 1 to 256 bytes"))
    }
}

impl Owner {
    /// Checks an owner.
    ///
    /// # Errors
    /// [`Invalid`] for one that is empty, longer than 128 bytes, or has a control character.
    pub fn new(owner: impl AsRef<str>) -> Result<Self, Invalid> {
        let owner = owner.as_ref();
        let fits = within(owner, 128) && !owner.chars().any(char::is_control);
        fits.then(|| Self(owner.into()))
            .ok_or_else(|| Invalid::new("owner", owner, "1 to 128 bytes without control characters"))
    }
}

impl Owner {
    /// Whether this is a clone of `other`: cheaper than comparing the text.
    pub(crate) fn is_same_as(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0)
    }
}

const fn within(text: &str, most: usize) -> bool {
    !text.is_empty() && text.len() <= most
}

macro_rules! reads_as_text {
    ($($name:ident)*) => {$(
        impl $name {
            /// The text itself.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl Borrow<str> for $name {
            fn borrow(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Debug::fmt(&*self.0, f)
            }
        }
    )*};
}

reads_as_text!(Id Name Identity Owner);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bi_1_an_id_is_refused_by_length_and_by_character() {
        assert!(Id::new("my-provider-api").is_ok());
        assert!(Id::new("é".repeat(100)).is_ok());
        for bad in
            [String::new(), "a".repeat(201), "a{b".into(), "a}b".into(), "a\nb".into(), "a\u{0}".into()]
        {
            let error = Id::new(&bad).unwrap_err();
            assert_eq!(error.option, "id");
            assert!(error.allowed.contains("200"));
        }
    }

    #[test]
    fn bi_1_a_name_is_refused_under_the_word_for_it() {
        assert!(Name::new("class", "inter_active.v-2").is_ok());
        for bad in ["", "a b", "é", &"x".repeat(65)] {
            assert_eq!(Name::new("class", bad).unwrap_err().option, "class");
        }
    }

    #[test]
    fn bi_3_an_identity_is_any_text_of_its_length() {
        assert!(Identity::new("a{b} \u{0}\n🦀").is_ok());
        assert!(Identity::new("").is_err());
        assert!(Identity::new("x".repeat(257)).is_err());
    }
}
