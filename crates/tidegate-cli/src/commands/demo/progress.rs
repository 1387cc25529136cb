//! What is seen while the demo runs: a chart in a terminal, else a plain line a second.

use std::io::{self, IsTerminal as _};
use std::time::Duration;

use super::chart::{Chart, Scene};
use super::fleet::{Fleet, View};
use super::schedule::Schedule;
use crate::output;

/// Shows how a run is going.
pub(super) struct Progress {
    title: String,
    span: Duration,
    ceiling: Option<Schedule>,
    face: Face,
    /// What the rate is counted from.
    earlier: (Duration, u64),
    rate: u64,
}

enum Face {
    Chart(Chart),
    /// Plain lines on stdout.
    Lines,
    /// Plain lines on stderr, since stdout is for data.
    Notes,
}

/// The time over which calls per second are counted.
const RATE_SPAN: Duration = Duration::from_secs(1);

impl Progress {
    /// A view of a run of `span`. With `data`, stdout is left alone.
    pub(super) fn open(title: String, span: Duration, ceiling: Option<Schedule>, data: bool) -> Self {
        let chart = || io::stdout().is_terminal().then(|| Chart::open(output::colour_is_welcome())).flatten();
        let face = if data { Face::Notes } else { chart().map_or(Face::Lines, Face::Chart) };
        Self { title, span, ceiling, face, earlier: (Duration::ZERO, 0), rate: 0 }
    }

    /// Says which processes the fleet is in, so that one can be killed or frozen to see what happens.
    ///
    /// # Errors
    ///
    /// Stdout could not be written to.
    pub(super) fn introduce(&self, pids: &[u32]) -> io::Result<()> {
        if pids.is_empty() {
            return Ok(());
        }
        let list: Vec<String> = pids.iter().map(u32::to_string).collect();
        let text = format!("pids: {}", list.join(" "));
        match self.face {
            Face::Chart(_) | Face::Lines => output::print(&format!("{text}\n")),
            Face::Notes => {
                output::note(&text);
                Ok(())
            }
        }
    }

    /// How often it wants to be shown.
    pub(super) fn pace(&self) -> Duration {
        match self.face {
            Face::Chart(_) => Duration::from_millis(100),
            Face::Lines | Face::Notes => Duration::from_secs(1),
        }
    }

    /// Shows the fleet as it is at `now`.
    ///
    /// # Errors
    ///
    /// Stdout could not be written to.
    pub(super) fn show(&mut self, now: Duration, fleet: &Fleet) -> io::Result<()> {
        let view = fleet.view();
        self.count(now, view.ok);
        let ceiling = self.ceiling.as_ref().map(|schedule| schedule.at(now));
        match &mut self.face {
            Face::Lines => output::print(&format!("{}\n", line(now, ceiling, self.rate, &view))),
            Face::Notes => {
                output::note(&line(now, ceiling, self.rate, &view));
                Ok(())
            }
            Face::Chart(chart) => chart.draw(&Scene {
                title: &self.title,
                status: &status(ceiling, self.rate, &view),
                span: self.span,
                now,
                limits: &fleet.log().limits(),
                ceiling: self.ceiling.as_ref(),
                throttles: &fleet.log().throttles(),
                open: fleet.breaks().then(|| fleet.log().open(now)).as_deref(),
            }),
        }
    }

    /// Brings the rate up to date, at most once a second.
    fn count(&mut self, now: Duration, ok: u64) {
        let (then, before) = self.earlier;
        let passed = now.saturating_sub(then);
        // Ticks come a little early or late.
        if passed + RATE_SPAN / 20 >= RATE_SPAN {
            self.rate = per_second(ok.saturating_sub(before), passed);
            self.earlier = (now, ok);
        }
    }
}

/// `count` in `time` as a whole number a second, rounded.
fn per_second(count: u64, time: Duration) -> u64 {
    let millis = u64::try_from(time.as_millis()).unwrap_or(u64::MAX).max(1);
    (count.saturating_mul(1_000) + millis / 2) / millis
}

fn line(now: Duration, ceiling: Option<u32>, rate: u64, view: &View) -> String {
    // The last moment of a second belongs to it, not to the one before.
    let seconds = (now + Duration::from_millis(50)).as_secs();
    let ceiling = ceiling.map_or_else(|| "unknown".to_owned(), |ceiling| ceiling.to_string());
    let View { limit, in_flight, waiting, throttled, failed, .. } = view;
    let circuit = match (view.open, view.blocked) {
        (false, 0) => String::new(),
        (open, blocked) => format!(" circuit={} blocked={blocked}", if open { "open" } else { "closed" }),
    };
    format!(
        "t={seconds}s limit={limit} ceiling={ceiling} in_flight={in_flight} waiting={waiting} ok/s={rate} \
         throttled={throttled} failed={failed}{circuit}"
    )
}

fn status(ceiling: Option<u32>, rate: u64, view: &View) -> String {
    let ceiling = ceiling.map_or_else(|| "unknown".to_owned(), |ceiling| ceiling.to_string());
    let View { limit, in_flight, waiting, throttled, failed, .. } = view;
    let failed = if *failed == 0 { String::new() } else { format!(", failed {failed}") };
    let circuit = match (view.open, view.blocked) {
        (false, 0) => String::new(),
        (true, blocked) => format!(", circuit open, blocked {blocked}"),
        (false, blocked) => format!(", blocked {blocked}"),
    };
    format!(
        "limit {limit}, ceiling {ceiling}, in flight {in_flight}, waiting {waiting}, {rate} ok/s, \
         throttled {throttled}{failed}{circuit}"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_says_it_all() {
        let view = View { limit: 13, in_flight: 12, waiting: 47, ok: 700, throttled: 2, ..View::default() };
        assert_eq!(
            line(Duration::from_millis(2_998), Some(20), 260, &view),
            "t=3s limit=13 ceiling=20 in_flight=12 waiting=47 ok/s=260 throttled=2 failed=0"
        );
        assert!(line(Duration::ZERO, None, 0, &view).contains("ceiling=unknown"));
        let open = View { open: true, blocked: 7, ..view };
        assert!(line(Duration::ZERO, None, 0, &open).ends_with("failed=0 circuit=open blocked=7"));
        assert!(status(None, 0, &open).ends_with("throttled 2, circuit open, blocked 7"));
    }

    #[test]
    fn a_rate_is_rounded() {
        assert_eq!(per_second(10, Duration::from_millis(999)), 10);
        assert_eq!(per_second(1, Duration::from_secs(3)), 0);
        assert_eq!(per_second(2, Duration::from_secs(3)), 1);
        assert_eq!(per_second(5, Duration::ZERO), 5_000);
    }
}
