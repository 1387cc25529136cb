//! Where the servers are, as people write it.

use std::{fmt, path::PathBuf};

use percent_encoding::percent_decode_str;
use tidegate_core::Invalid;

/// A server's address.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Address {
    Tcp { host: String, port: u16 },
    Unix(PathBuf),
}

impl fmt::Display for Address {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Tcp { host, port } if host.contains(':') => write!(f, "[{host}]:{port}"),
            Self::Tcp { host, port } => write!(f, "{host}:{port}"),
            Self::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

impl Address {
    /// Reads `host:port`, `[v6]:port` and, as servers write it, `v6:port`.
    pub(crate) fn read(text: &str, default_port: u16) -> Option<Self> {
        let (host, port) = match text.strip_prefix('[') {
            Some(rest) => {
                let (host, after) = rest.split_once(']')?;
                (host, after.strip_prefix(':'))
            }
            None => match text.rsplit_once(':') {
                Some((host, port)) => (host, Some(port)),
                None => (text, None),
            },
        };
        let port = match port {
            Some(port) => port.parse().ok().filter(|port| *port > 0)?,
            None => default_port,
        };
        let odd = |c: char| c.is_whitespace() || c.is_control() || matches!(c, '/' | '@' | ',');
        (!host.is_empty() && !host.contains(odd)).then(|| Self::Tcp { host: host.to_owned(), port })
    }
}

/// Who to log in as.
#[derive(Clone, Default, PartialEq, Eq)]
pub(crate) struct Login {
    pub(crate) user: Option<String>,
    pub(crate) password: Option<String>,
}

impl fmt::Debug for Login {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Login").field("user", &self.user).finish_non_exhaustive()
    }
}

/// How the servers stand to each other.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Topology {
    Single(Address),
    Sentinel { sentinels: Vec<Address>, name: String },
    Cluster { seeds: Vec<Address> },
}

/// What a URL says.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Place {
    pub(crate) topology: Topology,
    pub(crate) tls: bool,
    pub(crate) login: Login,
    pub(crate) database: i64,
}

const SERVER_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

const ALLOWED: &str = "redis://[[user]:password@]host[:port][/database], rediss:// for TLS, redis+unix:///path, \
    redis+sentinel://host:port,host:port/primary-name[/database] or redis+cluster://host:port,host:port";

impl Place {
    /// Reads a URL. What is wrong with it is said without its password.
    pub(crate) fn read(url: &str) -> Result<Self, Invalid> {
        let wrong = |what: &str| Invalid::new("url", shown(url), format!("{what}: {ALLOWED}"));
        let (scheme, rest) = url.split_once("://").ok_or_else(|| wrong("it needs a scheme"))?;
        let (rest, query) = match rest.split_once('?') {
            Some((rest, query)) => (rest, query),
            None => (rest, ""),
        };
        if rest.contains('#') {
            return Err(wrong("a # in it is to be written %23"));
        }
        let (tls, kind) = match scheme {
            "redis" | "valkey" => (false, Kind::Single),
            "rediss" | "valkeys" => (true, Kind::Single),
            "redis+sentinel" | "valkey+sentinel" => (false, Kind::Sentinel),
            "rediss+sentinel" | "valkeys+sentinel" => (true, Kind::Sentinel),
            "redis+cluster" | "valkey+cluster" => (false, Kind::Cluster),
            "rediss+cluster" | "valkeys+cluster" => (true, Kind::Cluster),
            "redis+unix" | "valkey+unix" | "unix" => return unix(rest, query).map_err(|what| wrong(&what)),
            _ => return Err(wrong("its scheme is not known")),
        };
        if !query.is_empty() {
            return Err(wrong("it takes no options after a ?"));
        }
        let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
        let (login, hosts) = match authority.rsplit_once('@') {
            Some((login, hosts)) => (read_login(login).map_err(wrong)?, hosts),
            None => (Login::default(), authority),
        };
        let default_port = if kind == Kind::Sentinel { SENTINEL_PORT } else { SERVER_PORT };
        let addresses = hosts
            .split(',')
            .map(|host| Address::read(host, default_port).ok_or_else(|| wrong("a host in it cannot be read")))
            .collect::<Result<Vec<_>, _>>()?;
        let mut parts = path.split('/').filter(|part| !part.is_empty());
        let topology = match kind {
            Kind::Single => match <[Address; 1]>::try_from(addresses) {
                Ok([address]) => Topology::Single(address),
                Err(_) => return Err(wrong("several hosts need +cluster or +sentinel in the scheme")),
            },
            Kind::Cluster => Topology::Cluster { seeds: addresses },
            Kind::Sentinel => {
                let name = parts.next().ok_or_else(|| wrong("the name of the primary is missing"))?;
                Topology::Sentinel { sentinels: addresses, name: decoded(name).map_err(wrong)? }
            }
        };
        let database = match parts.next() {
            Some(part) => read_database(part).ok_or_else(|| wrong("the database is not a number"))?,
            None => 0,
        };
        if parts.next().is_some() {
            return Err(wrong("its path is too long"));
        }
        if kind == Kind::Cluster && database != 0 {
            return Err(wrong("a cluster has database 0 only"));
        }
        Ok(Self { topology, tls, login, database })
    }
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Kind {
    Single,
    Sentinel,
    Cluster,
}

fn read_database(text: &str) -> Option<i64> {
    text.parse().ok().filter(|database| *database >= 0)
}

fn read_login(text: &str) -> Result<Login, &'static str> {
    let (user, password) = match text.split_once(':') {
        Some((user, password)) => (user, Some(password)),
        None => (text, None),
    };
    let password = password.map(decoded).transpose()?;
    if password.is_none() {
        return Err("a user without a password");
    }
    let user = Some(decoded(user)?).filter(|user| !user.is_empty());
    Ok(Login { user, password })
}

fn unix(path: &str, query: &str) -> Result<Place, String> {
    if path.is_empty() {
        return Err("the path of the socket is missing".to_owned());
    }
    let mut login = Login::default();
    let mut database = 0;
    for option in query.split('&').filter(|option| !option.is_empty()) {
        let (name, value) = option.split_once('=').unwrap_or((option, ""));
        match name {
            "user" => login.user = Some(decoded(value)?),
            "pass" => login.password = Some(decoded(value)?),
            "db" => database = read_database(value).ok_or("the database is not a number")?,
            _ => return Err("a socket takes the options db, user and pass".to_owned()),
        }
    }
    let topology = Topology::Single(Address::Unix(PathBuf::from(decoded(path)?)));
    Ok(Place { topology, tls: false, login, database })
}

fn decoded(text: &str) -> Result<String, &'static str> {
    let decoded = percent_decode_str(text).decode_utf8().map_err(|_| "an escape in it is not UTF-8")?;
    Ok(decoded.into_owned())
}

/// The URL without who logs in.
fn shown(url: &str) -> String {
    let (scheme, rest) = match url.split_once("://") {
        Some((scheme, rest)) => (Some(scheme), rest),
        None => (None, url),
    };
    let rest = match rest.rsplit_once('@') {
        Some((_, rest)) => format!("…@{rest}"),
        None => rest.to_owned(),
    };
    let rest = match rest.split_once('?') {
        Some((rest, _)) => format!("{rest}?…"),
        None => rest,
    };
    match scheme {
        Some(scheme) => format!("{scheme}://{rest}"),
        None => rest,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Address {
        Address::Tcp { host: host.to_owned(), port }
    }

    #[test]
    fn urls_are_read() {
        let place = Place::read("redis://localhost").unwrap();
        assert_eq!(place.topology, Topology::Single(tcp("localhost", 6379)));
        assert!(!place.tls);
        assert_eq!(place.database, 0);
        let place = Place::read("rediss://us%3Aer:p%40ss%2Fw@[::1]:7000/3").unwrap();
        assert_eq!(place.topology, Topology::Single(tcp("::1", 7000)));
        assert!(place.tls);
        assert_eq!(place.database, 3);
        assert_eq!(place.login.user.as_deref(), Some("us:er"));
        assert_eq!(place.login.password.as_deref(), Some("p@ss/w"));
        let place = Place::read("redis://:secret@host:1/").unwrap();
        assert_eq!(place.login, Login { user: None, password: Some("secret".to_owned()) });
        let place = Place::read("redis+sentinel://a:1,b/main/2").unwrap();
        let sentinels = vec![tcp("a", 1), tcp("b", 26379)];
        assert_eq!(place.topology, Topology::Sentinel { sentinels, name: "main".to_owned() });
        assert_eq!(place.database, 2);
        let place = Place::read("rediss+cluster://a:1,b:2").unwrap();
        assert_eq!(place.topology, Topology::Cluster { seeds: vec![tcp("a", 1), tcp("b", 2)] });
        let place = Place::read("redis+unix:///run/redis.sock?db=4&pass=a%20b").unwrap();
        assert_eq!(place.topology, Topology::Single(Address::Unix(PathBuf::from("/run/redis.sock"))));
        assert_eq!((place.database, place.login.password.as_deref()), (4, Some("a b")));
    }

    #[test]
    fn wrong_urls_are_refused_without_their_password() {
        for url in [
            "localhost:6379",
            "http://user:hidden@host",
            "redis://user:hidden@",
            "redis://user:hidden@host:0",
            "redis://user:hidden@host:99999",
            "redis://user:hidden@a,b",
            "redis://user:hidden@host/x",
            "redis://user:hidden@host/1/2",
            "redis://hidden@host",
            "redis://user:hidden@host?x=hidden",
            "redis+sentinel://user:hidden@host",
            "redis+cluster://user:hidden@host/1",
            "redis+unix://",
            "redis+unix:///x?pass=hidden&y=1",
            "redis://user:%FFhidden@host",
        ] {
            let error = Place::read(url).unwrap_err().to_string();
            assert!(!error.contains("hidden"), "{error}");
            assert!(error.starts_with("url: "), "{error}");
        }
    }
}
