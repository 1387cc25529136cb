//! The one clock of all records: that of the machine, so that what two processes wrote can be compared.

/// Microseconds since boot, time in suspend included where the system counts it: the clock by which a lease's holder
/// counts its own deadline.
pub fn now() -> u64 {
    #[cfg(any(target_os = "linux", target_os = "android"))]
    let clock = rustix::time::ClockId::Boottime;
    #[cfg(not(any(target_os = "linux", target_os = "android")))]
    let clock = rustix::time::ClockId::Monotonic;
    let at = rustix::time::clock_gettime(clock);
    let seconds = u64::try_from(at.tv_sec).unwrap_or(0);
    let micros = u64::try_from(at.tv_nsec).unwrap_or(0) / 1_000;
    seconds * 1_000_000 + micros
}

/// A length of time in the unit of [`now`], cut to what fits.
pub fn micros(length: std::time::Duration) -> u64 {
    u64::try_from(length.as_micros()).unwrap_or(u64::MAX)
}
