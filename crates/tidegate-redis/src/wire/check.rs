//! What a server says of itself: whether it can serve, and what it may lose.
//!
//! Spec: UN-6.

use std::collections::HashMap;

/// What a server was opened as.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Expected {
    Single,
    Sentinel,
    Cluster,
}

/// What came of looking at a server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Report {
    /// The version of Redis that it is, or says to be compatible with.
    pub(crate) version: Option<(u32, u32)>,
    /// Why it cannot be used, with what to do.
    pub(crate) fault: Option<String>,
    /// How it may lose state silently.
    pub(crate) risks: Vec<String>,
}

/// Judges an answer to `INFO`.
pub(crate) fn judge(info: &str, expected: Expected) -> Report {
    let facts: HashMap<&str, &str> =
        info.lines().filter_map(|line| line.trim_end().split_once(':')).collect();
    let fact = |name: &str| facts.get(name).copied();
    let version = fact("redis_version").and_then(read_version);
    let fault = unusable(&facts, version, expected);
    let mut risks = Vec::new();
    if let Some(policy) = fact("maxmemory_policy")
        && policy != "noeviction"
    {
        let when = match fact("maxmemory") {
            Some("0") => "once a maxmemory is set",
            _ => "when the server is full",
        };
        risks.push(format!(
            "maxmemory-policy is {policy}: leases, limits and levels may be evicted {when}; set it to noeviction"
        ));
    }
    let replicas = fact("connected_slaves").and_then(|count| count.parse().ok()).unwrap_or(0_u32);
    // Said only where min-replicas-to-write and min-replicas-max-lag are both set.
    if replicas > 0 && fact("min_slaves_good_slaves").is_none() {
        risks.push(
            "the primary does not wait for its replicas: writes may be lost in a fail-over or a network split; \
             set min-replicas-to-write and min-replicas-max-lag"
                .to_owned(),
        );
    }
    Report { version, fault, risks }
}

fn unusable(facts: &HashMap<&str, &str>, version: Option<(u32, u32)>, expected: Expected) -> Option<String> {
    let fact = |name: &str| facts.get(name).copied();
    if let Some((major, minor)) = version
        && (major, minor) < (6, 2)
    {
        let shown = fact("redis_version").unwrap_or_default();
        return Some(format!("the server is Redis {shown}: 6.2 or later is needed, or Valkey"));
    }
    if fact("redis_mode") == Some("sentinel") {
        return Some("this is a sentinel: use redis+sentinel://host:port/primary-name".to_owned());
    }
    match (expected, fact("cluster_enabled")) {
        (Expected::Single | Expected::Sentinel, Some("1")) => {
            return Some("this is a node of a cluster: use redis+cluster:// in the URL".to_owned());
        }
        (Expected::Cluster, Some("0")) => {
            return Some("this is no cluster: use redis:// or redis+sentinel:// in the URL".to_owned());
        }
        _ => {}
    }
    match (expected, fact("role")) {
        (Expected::Single, Some("slave")) => Some(format!(
            "this is a replica of {}:{}: point the URL at its primary, or use redis+sentinel:// to follow it",
            fact("master_host").unwrap_or("?"),
            fact("master_port").unwrap_or("?"),
        )),
        (Expected::Sentinel, Some("slave")) => {
            Some("the sentinels name this server, but it is a replica: the fail-over is under way".to_owned())
        }
        _ => None,
    }
}

/// Whether a version has shard channels, which messages then go over.
pub(crate) fn is_sharded(version: (u32, u32)) -> bool {
    version >= (7, 0)
}

/// What is said where `INFO` is refused.
pub(crate) fn unseen(reason: &str) -> Report {
    let risk =
        format!("eviction, replicas and version could not be checked, since INFO was refused: {reason}");
    Report { risks: vec![risk], ..Report::default() }
}

fn read_version(text: &str) -> Option<(u32, u32)> {
    let mut parts = text.split('.');
    Some((parts.next()?.parse().ok()?, parts.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    const SOUND: &str = "# Server\r\nredis_version:7.0.15\r\nredis_mode:standalone\r\n# Memory\r\nmaxmemory:0\r\n\
        maxmemory_policy:noeviction\r\n# Replication\r\nrole:master\r\nconnected_slaves:0\r\n# Cluster\r\n\
        cluster_enabled:0\r\n";

    fn with(line: &str) -> String {
        let name = line.split(':').next().unwrap();
        let kept = SOUND.lines().filter(|kept| !kept.starts_with(&format!("{name}:")));
        kept.chain([line]).map(|line| format!("{line}\r\n")).collect()
    }

    #[test]
    fn un_6_a_sound_server_has_no_risks() {
        let report = judge(SOUND, Expected::Single);
        assert_eq!(report, Report { version: Some((7, 0)), fault: None, risks: vec![] });
    }

    #[test]
    fn un_6_eviction_is_a_risk_whatever_the_policy() {
        for policy in ["allkeys-lru", "allkeys-random", "volatile-lru", "volatile-ttl"] {
            let info = with(&format!("maxmemory_policy:{policy}"));
            let report = judge(&info, Expected::Single);
            assert_eq!(report.risks.len(), 1);
            assert!(report.risks[0].contains(policy) && report.risks[0].contains("once a maxmemory"));
            let report = judge(&info.replace("maxmemory:0", "maxmemory:100"), Expected::Single);
            assert!(report.risks[0].contains("when the server is full"));
        }
    }

    #[test]
    fn un_6_replicas_that_nothing_waits_for_are_a_risk() {
        let info = with("connected_slaves:1");
        assert_eq!(judge(&info, Expected::Single).risks.len(), 1);
        let waits = format!("{info}min_slaves_good_slaves:1\r\n");
        assert!(judge(&waits, Expected::Single).risks.is_empty());
    }

    #[test]
    fn un_6_what_cannot_serve_is_told_with_what_to_do() {
        let fault = |line: &str, expected| judge(&with(line), expected).fault.unwrap_or_default();
        assert!(fault("redis_version:6.0.9", Expected::Single).contains("6.2 or later"));
        assert!(fault("redis_version:5.9.9", Expected::Single).contains("5.9.9"));
        assert_eq!(fault("redis_version:6.2.0", Expected::Single), "");
        assert!(fault("cluster_enabled:1", Expected::Single).contains("redis+cluster://"));
        assert!(fault("cluster_enabled:0", Expected::Cluster).contains("no cluster"));
        assert!(fault("role:slave", Expected::Single).contains("replica"));
        assert_eq!(fault("role:slave", Expected::Cluster), fault("cluster_enabled:0", Expected::Cluster));
        assert!(fault("redis_mode:sentinel", Expected::Single).contains("redis+sentinel"));
    }
}
