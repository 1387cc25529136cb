//! What every primitive is built from, and what its handles share.

use std::{ops::Deref, sync::Arc, time::Duration};

use tidegate_core::{
    Bound, Capability, DriverId, Id, Invalid, Member, OnSuperseded, Owner, Policy, Store, time,
};

use crate::{
    BuildError, Metrics,
    clock::Clock,
    driver::{Config, Driver, Fallback},
    hooks::Hooks,
    telemetry::Facade,
};

/// A counted handle on a driver: the last one closes it.
pub(crate) struct Handle(Arc<Driver>);

impl Handle {
    fn new(driver: Arc<Driver>) -> Self {
        driver.add_handle();
        Self(driver)
    }
}

impl Clone for Handle {
    fn clone(&self) -> Self {
        Self::new(Arc::clone(&self.0))
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        self.0.drop_handle();
    }
}

impl Deref for Handle {
    type Target = Arc<Driver>;

    fn deref(&self) -> &Arc<Driver> {
        &self.0
    }
}

/// The options of every primitive that concern one process, and not the policy.
pub(crate) struct Common {
    pub(crate) id: String,
    pub(crate) on_superseded: OnSuperseded,
    pub(crate) op_timeout: Duration,
    pub(crate) metrics: Option<Metrics>,
    pub(crate) hooks: Hooks,
    pub(crate) clock: Option<Arc<dyn Clock>>,
}

/// How long one operation of the store may take, unless told.
const OP_TIMEOUT: Duration = Duration::from_secs(1);

impl Common {
    pub(crate) fn new(id: String) -> Self {
        Self {
            id,
            on_superseded: OnSuperseded::Adopt,
            op_timeout: OP_TIMEOUT,
            metrics: None,
            hooks: Hooks::default(),
            clock: None,
        }
    }

    /// Checks these options, and whether the store has what is needed.
    pub(crate) fn check(
        &self,
        needs: impl IntoIterator<Item = Capability>,
        store: &impl Store,
    ) -> Result<Id, BuildError> {
        let refused = |invalid| BuildError::new(self.id.clone(), invalid);
        let id = Id::new(&self.id).map_err(refused)?;
        if self.op_timeout < Duration::from_millis(1) || self.op_timeout > time::LONGEST {
            return Err(refused(Invalid::new("op_timeout", self.op_timeout, "1 ms to 366 days")));
        }
        for needed in needs {
            if !store.capabilities().has(needed) {
                let allowed = format!("a store with the capability: {needed}");
                return Err(refused(Invalid::new("store", store.capabilities(), allowed)));
            }
        }
        self.metrics.iter().try_for_each(Metrics::check).map_err(refused)?;
        Ok(id)
    }
}

/// The options of a queue for permits that concern one process.
pub(crate) struct Options {
    pub(crate) common: Common,
    pub(crate) owner: Option<String>,
    pub(crate) max_queue: usize,
    pub(crate) fail_fast: bool,
}

/// The most jobs that may wait in one process, unless told.
const MAX_QUEUE: usize = 10_000;

impl Options {
    pub(crate) fn new(id: String) -> Self {
        Self { common: Common::new(id), owner: None, max_queue: MAX_QUEUE, fail_fast: false }
    }

    /// Checks the options and the store, and makes the driver. Asks nothing of the store.
    pub(crate) fn build(
        mut self,
        policy: Policy,
        initial_limit: u32,
        local_limit: Option<u32>,
        fallback: Option<Fallback>,
        store: impl Store,
    ) -> Result<Handle, BuildError> {
        let refused = |id: &str, invalid| BuildError::new(id.to_owned(), invalid);
        let id = self.common.check(needs(&policy), &store)?;
        let owner = self.owner.take().unwrap_or_else(default_owner);
        let owner = Owner::new(owner).map_err(|invalid| refused(&self.common.id, invalid))?;
        if self.max_queue == 0 {
            return Err(refused(&self.common.id, Invalid::new("max_queue", 0, "1 at least")));
        }
        if let Some(metrics) = &self.common.metrics {
            let classes = policy.classes().iter().map(|class| Some(class.name.to_string())).chain([None]);
            let limit = policy.bound().map(|bound| match bound {
                Bound::Fixed(limit) => *limit,
                Bound::Adaptive(_) => initial_limit,
            });
            self.common.hooks.recorders.push(Arc::new(Facade::new(metrics, &id, classes, limit)));
        }
        let driver = DriverId(fastrand::u128(1..));
        let member = Member {
            id,
            driver,
            owner,
            policy: Arc::new(policy),
            on_superseded: self.common.on_superseded,
            initial_limit,
        };
        let config = Config {
            member,
            clock: self.common.clock,
            op_timeout: self.common.op_timeout,
            fallback,
            local_limit,
            max_queue: self.max_queue,
            fail_fast: self.fail_fast,
            hooks: self.common.hooks,
        };
        Ok(Handle::new(Driver::new(config, Arc::new(store))))
    }
}

/// The capabilities without which a policy cannot be kept.
fn needs(policy: &Policy) -> impl Iterator<Item = Capability> {
    let leases = policy.bound().map(|_| Capability::Leases);
    let adaptive = policy.adaptive().map(|_| Capability::Adaptive);
    let scoped = policy.is_scoped().then_some(Capability::Scoped);
    leases.into_iter().chain(adaptive).chain(scoped)
}

/// `host:pid:random`.
fn default_owner() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").ok();
    let host = host.or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    let host: String = host.trim().chars().filter(|c| !c.is_control()).take(24).collect();
    let host = if host.is_empty() { "host" } else { &host };
    format!("{host}:{}:{:08x}", std::process::id(), fastrand::u32(..))
}

/// The setters that every builder has, where its [`Common`] options are at a place.
macro_rules! common_setters {
    ($($common:ident).+) => {
        /// The revision of this worker's policy: 0 unless told, to 2^31 − 1. A higher one replaces the pinned policy.
        ///
        /// Spec: ST-5.
        pub fn revision(mut self, revision: u32) -> Self {
            self.draft = self.draft.revision(revision);
            self
        }

        /// What to do when a newer policy is pinned: adopt it, unless told.
        ///
        /// Spec: ST-5.
        pub fn on_superseded(mut self, on_superseded: $crate::OnSuperseded) -> Self {
            self.$($common).+.on_superseded = on_superseded;
            self
        }

        /// How long one operation of the store may take: 1 s unless told, 1 ms at least. No policy.
        ///
        /// Spec: UN-1.
        pub fn op_timeout(mut self, op_timeout: std::time::Duration) -> Self {
            self.$($common).+.op_timeout = op_timeout;
            self
        }

        /// Metrics through the `metrics` facade; none unless told.
        ///
        /// Spec: OB-1.
        pub fn metrics(mut self, metrics: $crate::Metrics) -> Self {
            self.$($common).+.metrics = Some(metrics);
            self
        }

        /// A recorder of one's own; any number of them.
        ///
        /// Spec: OB-1.
        pub fn recorder(mut self, recorder: impl $crate::Recorder + 'static) -> Self {
            self.$($common).+.hooks.recorders.push(std::sync::Arc::new(recorder));
            self
        }

        /// Is told of trouble that no caller waits to hear of; it goes to `tracing` unless told. A panic in it goes
        /// there too.
        ///
        /// Spec: BI-4.
        pub fn on_error(mut self, on_error: impl Fn(&$crate::Trouble) + Send + Sync + 'static) -> Self {
            self.$($common).+.hooks.on_error = Some(std::sync::Arc::new(on_error));
            self
        }

        /// The clock that waits and deadlines of this process are counted on: the machine's unless told, or the
        /// store's own where it is in this process.
        pub fn clock(mut self, clock: impl $crate::clock::Clock) -> Self {
            self.$($common).+.clock = Some(std::sync::Arc::new($crate::clock::Bounded(clock)));
            self
        }
    };
}

/// The setters of every builder that makes a queue for permits.
macro_rules! queue_setters {
    () => {
        $crate::handle::common_setters!(options.common);

        /// Who holds the leases, as people see it: 1 to 128 bytes; `host:pid:random` unless told. No policy.
        pub fn owner(mut self, owner: impl Into<String>) -> Self {
            self.options.owner = Some(owner.into());
            self
        }

        /// Whether the id's first use waits one TTL, with buckets empty and windows full; off unless told.
        ///
        /// Spec: ST-18.
        pub fn safe_start(mut self, safe_start: $crate::SafeStart) -> Self {
            self.draft = self.draft.safe_start(safe_start);
            self
        }

        /// The lease TTL: 30 s unless told, 100 ms to 24 h. A crashed holder's slot returns within one.
        pub fn lease_ttl(mut self, ttl: std::time::Duration) -> Self {
            self.draft = self.draft.lease_ttl(ttl);
            self
        }

        /// Adds a class; at most 16, with shares that sum below 1.
        ///
        /// Spec: AS-5.
        pub fn class(mut self, class: $crate::Class) -> Self {
            self.classes.push(class);
            self
        }

        /// Is told of each change of the limit in this process's view, but not of the first load.
        ///
        /// Spec: AS-11.
        pub fn on_limit_change(mut self, on_limit_change: impl Fn(u32) + Send + Sync + 'static) -> Self {
            self.options.common.hooks.on_limit_change = Some(std::sync::Arc::new(on_limit_change));
            self
        }
    };
}

pub(crate) use {common_setters, queue_setters};
