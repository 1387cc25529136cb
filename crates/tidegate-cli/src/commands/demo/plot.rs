//! The limit against the ceiling, as an SVG file.

use std::fmt::Write as _;
use std::fs::{self, OpenOptions};
use std::io;
use std::path::Path;
use std::time::Duration;

use super::schedule::Schedule;

const WIDTH: f64 = 960.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 56.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 64.0;
const BOTTOM: f64 = 56.0;

/// What the plot shows.
#[derive(Debug)]
pub(super) struct Picture<'a> {
    pub(super) title: &'a str,
    /// How much time the plot is wide.
    pub(super) span: Duration,
    /// The limits with the moments that each began.
    pub(super) limits: &'a [(Duration, u32)],
    /// The ceiling over time, where it is known.
    pub(super) ceiling: Option<&'a Schedule>,
    /// When calls were throttled.
    pub(super) throttles: &'a [Duration],
    /// When the circuit was open.
    pub(super) open: &'a [(Duration, Duration)],
}

/// Whether a plot can be written to `path`, without a trace.
///
/// # Errors
///
/// Why not.
pub(super) fn check(path: &Path) -> Result<(), String> {
    let allowed = "allowed is a file name that ends in .svg, in a folder that can be written to";
    if !path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("svg")) {
        return Err(allowed.into());
    }
    let there = path.try_exists().unwrap_or(false);
    OpenOptions::new()
        .append(true)
        .create(true)
        .open(path)
        .and_then(|_| if there { Ok(()) } else { fs::remove_file(path) })
        .map_err(|error| format!("{allowed} ({error})"))
}

/// Draws `picture` into the file at `path`.
///
/// # Errors
///
/// The file could not be written.
pub(super) fn write(path: &Path, picture: &Picture<'_>) -> io::Result<()> {
    fs::write(path, svg(picture))
}

/// The picture as a document. Its colours follow the reader's light or dark scheme; plain attributes carry the
/// light one for programs that know no style sheets.
fn svg(picture: &Picture<'_>) -> String {
    let shown = picture.limits.iter().filter(|&&(at, _)| at <= picture.span);
    let limit = shown.map(|&(_, limit)| limit).max().unwrap_or(0);
    let highest = picture.ceiling.map_or(0, Schedule::highest).max(limit).max(1);
    let value_step = step(f64::from(highest) / 6.0).max(1.0);
    let frame =
        Frame { top: f64::from(highest) * 1.1, span: picture.span.as_secs_f64().max(f64::MIN_POSITIVE) };
    let (floor, right) = (HEIGHT - BOTTOM, WIDTH - RIGHT);

    let mut out = Document::default();
    out.line(format_args!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" width=\"{WIDTH}\" \
         height=\"{HEIGHT}\" font-family=\"system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif\" \
         font-size=\"13\" role=\"img\">"
    ));
    let title = escaped(picture.title);
    out.line(format_args!("<title>{title}</title>"));
    out.line(format_args!(
        "<style>@media (prefers-color-scheme: dark) {{ .paper {{ fill: #14181d }} .ink {{ fill: #d6dde4 }} \
         .grid {{ stroke: #2c343d }} .axis {{ stroke: #75818d }} .limit {{ stroke: #4cc2ff }} \
         .ceiling {{ stroke: #f0b429 }} .throttled {{ stroke: #ff6b6b }} .open {{ fill: #5a2a2a }} }}</style>"
    ));
    out.line(format_args!("<rect class=\"paper\" width=\"{WIDTH}\" height=\"{HEIGHT}\" fill=\"#ffffff\"/>"));
    out.text(LEFT, 26.0, "start", "font-size=\"16\" font-weight=\"600\"", &title);
    legend(&mut out, picture.ceiling.is_some());
    for &(from, to) in picture.open {
        let (from, to) = (frame.x(from.as_secs_f64()), frame.x(to.as_secs_f64()));
        let (wide, high) = ((to - from).max(1.0), floor - TOP);
        out.line(format_args!(
            "<rect class=\"open\" x=\"{from:.1}\" y=\"{TOP}\" width=\"{wide:.1}\" height=\"{high}\" fill=\"#fbe3e4\"/>"
        ));
        let middle = f64::midpoint(from, from + wide);
        out.text(middle, TOP + 18.0, "middle", "font-size=\"12\"", "circuit open");
    }

    for value in ticks(value_step, frame.top) {
        let y = frame.y(value);
        out.path("grid", "#e3e7eb", "", &format!("M{LEFT} {y:.1}H{right}"));
        out.text(LEFT - 8.0, y + 4.5, "end", "", &format!("{value}"));
    }
    for second in ticks(step(frame.span / 10.0), frame.span * (1.0 + 1e-9)) {
        let x = frame.x(second);
        out.path("axis", "#6b7680", "", &format!("M{x:.1} {floor}v5"));
        out.text(x, floor + 20.0, "middle", "", &format!("{second} s"));
    }
    out.path("axis", "#6b7680", "", &format!("M{LEFT} {TOP}V{floor}H{right}"));
    out.text(f64::midpoint(LEFT, right), HEIGHT - 12.0, "middle", "", "time since the start");
    let middle = f64::midpoint(TOP, floor);
    let turned = format!("transform=\"rotate(-90 16 {middle})\"");
    out.text(16.0, middle, "middle", &turned, "calls at once");

    out.path("throttled", "#d1242f", "stroke-width=\"2\"", &frame.marks(picture.throttles, picture.span));
    if let Some(ceiling) = picture.ceiling {
        let steps = ceiling.steps();
        out.path("ceiling", "#b7791f", "stroke-width=\"2\" stroke-dasharray=\"7 5\"", &frame.stairs(&steps));
    }
    out.path(
        "limit",
        "#0969da",
        "stroke-width=\"2\" stroke-linejoin=\"round\"",
        &frame.stairs(picture.limits),
    );
    out.line(format_args!("</svg>"));
    out.0
}

fn legend(out: &mut Document, ceiling: bool) {
    let mut x = LEFT;
    let mut entry = |class, colour, more, shape: &str, name: &str, width: f64| {
        out.path(class, colour, more, &format!("M{x} {shape}"));
        out.text(x + 32.0, 50.0, "start", "", name);
        x += width;
    };
    entry("limit", "#0969da", "stroke-width=\"2\"", "46h24", "limit", 88.0);
    if ceiling {
        entry(
            "ceiling",
            "#b7791f",
            "stroke-width=\"2\" stroke-dasharray=\"7 5\"",
            "46h24",
            "hidden ceiling",
            150.0,
        );
    }
    entry("throttled", "#d1242f", "stroke-width=\"2\"", "41m8 0v10m4 -10v10m6 -10v10", "throttled call", 0.0);
}

/// A document that is written line by line.
#[derive(Default)]
struct Document(String);

impl Document {
    fn line(&mut self, line: std::fmt::Arguments<'_>) {
        // Writing into a string cannot fail.
        let _ = writeln!(self.0, "{line}");
    }

    fn path(&mut self, class: &str, colour: &str, more: &str, shape: &str) {
        self.line(format_args!(
            "<path class=\"{class}\" fill=\"none\" stroke=\"{colour}\" {more} d=\"{shape}\"/>"
        ));
    }

    fn text(&mut self, x: f64, y: f64, anchor: &str, more: &str, text: &str) {
        self.line(format_args!(
            "<text class=\"ink\" fill=\"#1f2328\" x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" {more}>{text}</text>"
        ));
    }
}

/// Where moments and values are.
struct Frame {
    top: f64,
    /// In seconds.
    span: f64,
}

impl Frame {
    fn x(&self, seconds: f64) -> f64 {
        LEFT + (WIDTH - LEFT - RIGHT) * (seconds / self.span).min(1.0)
    }

    fn y(&self, value: f64) -> f64 {
        let floor = HEIGHT - BOTTOM;
        floor - (floor - TOP) * value / self.top
    }

    /// A line of steps up to the right edge. Steps past it are left out.
    fn stairs(&self, steps: &[(Duration, u32)]) -> String {
        let mut shape = String::new();
        for &(at, value) in steps.iter().filter(|(at, _)| at.as_secs_f64() <= self.span) {
            let (x, y) = (self.x(at.as_secs_f64()), self.y(f64::from(value)));
            let _ = if shape.is_empty() {
                write!(shape, "M{x:.1} {y:.1}")
            } else {
                write!(shape, "H{x:.1}V{y:.1}")
            };
        }
        let _ = write!(shape, "H{}", WIDTH - RIGHT);
        shape
    }

    /// A short mark above the axis for every moment, at most one for each unit of width.
    fn marks(&self, moments: &[Duration], span: Duration) -> String {
        let floor = HEIGHT - BOTTOM;
        let mut places: Vec<String> = moments
            .iter()
            .filter(|&&at| at <= span)
            .map(|at| format!("{:.0}", self.x(at.as_secs_f64())))
            .collect();
        places.dedup();
        let mut shape = format!("M{LEFT} {floor}");
        for x in places {
            let _ = write!(shape, "M{x} {floor}v-10");
        }
        shape
    }
}

/// The smallest of 1, 2 and 5 times a power of ten that is not below `least`.
fn step(least: f64) -> f64 {
    let power = 10.0_f64.powf(least.log10().floor());
    [1.0, 2.0, 5.0].into_iter().map(|times| times * power).find(|&step| step >= least).unwrap_or(10.0 * power)
}

/// The multiples of `step` from 0 to `end`.
fn ticks(step: f64, end: f64) -> impl Iterator<Item = f64> {
    // Steps below 1 are tenths or hundredths: rounding takes away what binary fractions add.
    (0..=100).map(move |n| (f64::from(n) * step * 1e3).round() / 1e3).take_while(move |&tick| tick <= end)
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    #[test]
    fn a_picture_has_both_lines_and_the_marks() {
        let schedule = Schedule::new(20, [(SECOND * 10, 8)]);
        let limits = [(Duration::ZERO, 10), (SECOND * 5, 21), (SECOND * 10, 10), (SECOND * 30, 999)];
        let throttles = [SECOND * 5, SECOND * 5, SECOND * 10, SECOND * 25];
        let picture = Picture {
            title: "a < b & c",
            span: SECOND * 20,
            limits: &limits,
            ceiling: Some(&schedule),
            throttles: &throttles,
            open: &[(SECOND * 5, SECOND * 10)],
        };
        let svg = svg(&picture);
        assert_eq!(svg.matches("circuit open").count(), 1);
        assert!(svg.contains("width=\"220.0\" height=\"300\""), "a quarter of the width: {svg}");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("<title>a &lt; b &amp; c</title>"));
        assert_eq!(svg.matches("v-10").count(), 2, "{svg}");
        assert_eq!(svg.matches("class=\"limit\"").count(), 2);
        assert_eq!(svg.matches("class=\"ceiling\"").count(), 2);
        assert!(svg.contains("hidden ceiling") && !svg.contains("NaN") && !svg.contains("inf"));
    }

    #[test]
    fn an_unknown_ceiling_is_not_drawn() {
        let picture =
            Picture { title: "t", span: SECOND, limits: &[], ceiling: None, throttles: &[], open: &[] };
        assert!(!svg(&picture).contains("ceiling\""));
    }

    #[test]
    fn ticks_are_round_numbers() {
        assert_eq!(step(2.0), 2.0);
        assert_eq!(step(2.1), 5.0);
        assert_eq!(step(0.1), 0.1);
        assert_eq!(step(6.0), 10.0);
        assert_eq!(step(360.0), 500.0);
        assert_eq!(ticks(0.1, 0.3).collect::<Vec<_>>(), [0.0, 0.1, 0.2, 0.3]);
    }

    #[test]
    fn a_place_for_the_plot_is_checked_without_a_trace() {
        let folder = std::env::temp_dir().join(format!("tidegate-plot-{}", std::process::id()));
        fs::create_dir_all(&folder).unwrap();
        let path = folder.join("new.svg");
        assert_eq!(check(&path), Ok(()));
        assert!(!path.exists());
        fs::write(&path, "old").unwrap();
        assert_eq!(check(&path), Ok(()));
        assert_eq!(fs::read_to_string(&path).unwrap(), "old");
        for bad in
            [folder.join("new.png"), folder.join("none/new.svg"), folder.clone(), Path::new("").to_owned()]
        {
            assert!(check(&bad).is_err(), "{}", bad.display());
        }
        fs::create_dir(folder.join("folder.svg")).unwrap();
        assert!(check(&folder.join("folder.svg")).is_err());
        fs::remove_dir_all(&folder).unwrap();
    }
}
