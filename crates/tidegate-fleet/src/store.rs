//! Stores by their URL: the one place that knows which there are.

use std::sync::Arc;

use tidegate::{MemoryStore, Store, StoreError};
use tidegate_redis::RedisStore;

/// Why no store could be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// Nothing here opens URLs of this kind.
    #[error("no store for {scheme:?} in {url:?}: there are {}", SCHEMES.join(", "))]
    UnknownScheme {
        /// The URL, without a password.
        url: String,
        /// What stands before its colon.
        scheme: String,
    },
    /// The store could not be opened.
    #[error("cannot open {url:?}")]
    Store {
        /// The URL, without a password.
        url: String,
        /// Why.
        #[source]
        source: StoreError,
    },
}

/// The kinds of URL that [`open_store`] takes.
pub const SCHEMES: &[&str] = &["memory", "redis", "rediss", "redis+sentinel", "redis+cluster"];

/// Opens the store at a URL. One in memory is a new one each time, and serves this process only.
///
/// # Errors
/// [`OpenError`] for a URL of an unknown kind, and for a store that refuses to be opened so.
///
/// # Examples
/// ```
/// use tidegate_fleet::store::open_store;
///
/// assert!(open_store("memory://").is_ok());
/// assert!(open_store("gopher://127.0.0.1").err().is_some_and(|error| error.to_string().contains("gopher")));
/// ```
pub fn open_store(url: &str) -> Result<Arc<dyn Store>, OpenError> {
    let scheme = url.split_once(':').map_or(url, |(scheme, _)| scheme);
    match scheme {
        "memory" => Ok(Arc::new(MemoryStore::new())),
        "redis" | "rediss" | "redis+sentinel" | "redis+cluster" => match RedisStore::lazy(url) {
            Ok(store) => Ok(Arc::new(store)),
            Err(source) => Err(OpenError::Store { url: without_password(url), source }),
        },
        // A new kind of store gets its arm here, and its name in `SCHEMES`.
        _ => Err(OpenError::UnknownScheme { url: without_password(url), scheme: scheme.to_owned() }),
    }
}

/// A URL that can be shown.
fn without_password(url: &str) -> String {
    match (url.find("://"), url.rfind('@')) {
        (Some(scheme), Some(at)) if at > scheme => format!("{}://...{}", &url[..scheme], &url[at..]),
        _ => url.to_owned(),
    }
}
