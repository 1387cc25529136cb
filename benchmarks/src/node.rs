//! The peers in JavaScript, where they are installed.

use std::path::Path;

use crate::{contender::Contender, figure::Report};

/// Each is none where they are not installed.
pub(crate) struct Node {
    pub(crate) redis_semaphore: Option<Contender>,
    pub(crate) bottleneck: Option<Contender>,
    pub(crate) rate_limiter_flexible: Option<Contender>,
    pub(crate) opossum: Option<Contender>,
}

impl Node {
    pub(crate) fn at(folder: Option<&Path>, report: &mut Report) -> Self {
        let mut peer = |name: &'static str| {
            let found = folder.filter(|folder| folder.join("node_modules").join(name).is_dir());
            let Some(folder) = found else {
                report.leave_out(format!("{name}: it is not installed (npm ci in benchmarks/node)"));
                return None;
            };
            let program = folder.join("contender.mjs");
            Some(Contender::new(name, "node", &[&program.to_string_lossy(), name]))
        };
        Self {
            redis_semaphore: peer("redis-semaphore"),
            bottleneck: peer("bottleneck"),
            rate_limiter_flexible: peer("rate-limiter-flexible"),
            opossum: peer("opossum"),
        }
    }
}
