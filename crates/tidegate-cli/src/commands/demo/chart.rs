//! The limit against the ceiling, in the terminal.

use std::io::{self, Write as _};
use std::time::Duration;

use crossterm::{cursor, queue, style, terminal};

use super::schedule::Schedule;

/// Rows of the plot.
const ROWS: usize = 12;
/// Dots of a cell: two side by side, four on top of each other.
const DOTS_WIDE: usize = 2;
const DOTS_HIGH: usize = 4;
/// Columns left of the plot: a label and the axis.
const MARGIN: usize = 6;
/// The smallest terminal that the chart fits into, in columns and rows.
const SMALLEST: (u16, u16) = (40, 20);

/// What a frame of the chart shows.
#[derive(Debug, Clone)]
pub(super) struct Scene<'a> {
    /// The line above.
    pub(super) title: &'a str,
    /// The line below.
    pub(super) status: &'a str,
    /// How much time the plot is wide.
    pub(super) span: Duration,
    /// How much of it has passed.
    pub(super) now: Duration,
    /// The limits with the moments that each began.
    pub(super) limits: &'a [(Duration, u32)],
    /// The ceiling over time, where it is known.
    pub(super) ceiling: Option<&'a Schedule>,
    /// When calls were throttled.
    pub(super) throttles: &'a [Duration],
    /// When the circuit was open; none without a breaker.
    pub(super) open: Option<&'a [(Duration, Duration)]>,
}

/// What a piece of a line is, and so its colour.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Ink {
    Plain,
    Faint,
    Limit,
    Ceiling,
    Throttle,
}

impl Ink {
    /// Colours that can be read on light and on dark.
    fn colour(self) -> Option<style::Color> {
        match self {
            Self::Plain => None,
            Self::Faint => Some(style::Color::DarkGrey),
            Self::Limit => Some(style::Color::DarkCyan),
            Self::Ceiling => Some(style::Color::DarkYellow),
            Self::Throttle => Some(style::Color::DarkRed),
        }
    }
}

type Line = Vec<(String, Ink)>;

/// A chart that is drawn over itself.
pub(super) struct Chart {
    colour: bool,
    /// The lines of the frame on the screen.
    drawn: u16,
}

impl Chart {
    /// A chart, if the terminal can show one.
    pub(super) fn open(colour: bool) -> Option<Self> {
        let (columns, rows) = terminal::size().ok()?;
        let dumb = std::env::var_os("TERM").is_some_and(|term| term == "dumb");
        (!dumb && columns >= SMALLEST.0 && rows >= SMALLEST.1).then_some(Self { colour, drawn: 0 })
    }

    /// Draws `scene` in place of the last one.
    ///
    /// # Errors
    ///
    /// The terminal could not be written to.
    pub(super) fn draw(&mut self, scene: &Scene<'_>) -> io::Result<()> {
        let columns = terminal::size().map_or(80, |(columns, _)| usize::from(columns));
        let lines = frame(scene, columns);
        let mut out = Vec::new();
        queue!(out, cursor::Hide, terminal::DisableLineWrap)?;
        if self.drawn > 0 {
            queue!(out, cursor::MoveUp(self.drawn), cursor::MoveToColumn(0))?;
        }
        self.drawn = 0;
        for line in &lines {
            for (text, ink) in line {
                match ink.colour().filter(|_| self.colour) {
                    Some(colour) => queue!(
                        out,
                        style::SetForegroundColor(colour),
                        style::Print(text),
                        style::SetForegroundColor(style::Color::Reset)
                    )?,
                    None => queue!(out, style::Print(text))?,
                }
            }
            queue!(out, terminal::Clear(terminal::ClearType::UntilNewLine), style::Print("\n"))?;
            self.drawn += 1;
        }
        queue!(
            out,
            terminal::Clear(terminal::ClearType::FromCursorDown),
            terminal::EnableLineWrap,
            cursor::Show
        )?;
        let mut stdout = io::stdout().lock();
        stdout.write_all(&out)?;
        stdout.flush()
    }
}

/// The lines of a frame that is `columns` wide.
fn frame(scene: &Scene<'_>, columns: usize) -> Vec<Line> {
    let width = columns.saturating_sub(MARGIN + 1).clamp(10, 160);
    let highest_limit = scene.limits.iter().map(|&(_, limit)| limit).max().unwrap_or(0);
    let highest = scene.ceiling.map_or(0, Schedule::highest).max(highest_limit);
    // Some air above the highest line.
    let top = highest + (highest / 5).max(1);
    let plot = Plot { width, top, span: scene.span };

    let mut canvas = Canvas::new(width);
    if let Some(ceiling) = scene.ceiling {
        plot.trace(&ceiling.steps(), scene.span, |x, low, high| {
            for y in low..=high {
                // Dotted, so that it is told from the limit without colour too.
                if x % 2 == 0 || low != high {
                    canvas.set(x, y, Ink::Ceiling);
                }
            }
        });
    }
    plot.trace(scene.limits, scene.now, |x, low, high| {
        for y in low..=high {
            canvas.set(x, y, Ink::Limit);
        }
    });

    let mut lines = vec![vec![(scene.title.to_owned(), Ink::Plain)]];
    for row in 0..ROWS {
        let mut line = vec![(plot.label(row), Ink::Plain), ("│".to_owned(), Ink::Faint)];
        line.extend(canvas.row(row));
        lines.push(line);
    }
    lines.push(plot.throttles(scene.throttles));
    lines.extend(scene.open.map(|open| plot.open(open)));
    lines.push(vec![(format!("{:>w$}└{}", "", "─".repeat(width), w = MARGIN - 1), Ink::Faint)]);
    lines.push(vec![(plot.times(), Ink::Plain)]);
    lines.push(vec![(format!("  {}", scene.status), Ink::Plain)]);
    lines.push(legend(scene.ceiling.is_some(), scene.open.is_some()));
    lines
}

fn legend(ceiling: bool, breaker: bool) -> Line {
    let mut line =
        vec![("  ".to_owned(), Ink::Plain), ("⠒⠒".to_owned(), Ink::Limit), (" limit".to_owned(), Ink::Plain)];
    if ceiling {
        line.push(("   ⠐⠐".to_owned(), Ink::Ceiling));
        line.push((" hidden ceiling".to_owned(), Ink::Plain));
    }
    line.push(("   ×".to_owned(), Ink::Throttle));
    line.push((" throttled".to_owned(), Ink::Plain));
    if breaker {
        line.push(("   ■".to_owned(), Ink::Throttle));
        line.push((" circuit open".to_owned(), Ink::Plain));
    }
    line
}

/// Where moments and values are in the plot.
struct Plot {
    width: usize,
    top: u32,
    span: Duration,
}

impl Plot {
    /// The place of a moment among `places` from left to right.
    fn x(&self, moment: Duration, places: usize) -> usize {
        let span = self.span.as_nanos().max(1);
        // A plot is a few hundred places wide, and a moment in it is within the span.
        let place = moment.as_nanos().saturating_mul(places as u128) / span;
        usize::try_from(place).unwrap_or(usize::MAX).min(places.saturating_sub(1))
    }

    /// The dot of a value, from the bottom.
    fn y(&self, value: u32) -> usize {
        let dots = u64::try_from(ROWS * DOTS_HIGH - 1).unwrap_or(u64::MAX);
        let dot = (u64::from(value) * dots + u64::from(self.top) / 2) / u64::from(self.top.max(1));
        usize::try_from(dot).unwrap_or(usize::MAX)
    }

    /// The label of a row, counted from the top: the top, the middle and the bottom have one.
    fn label(&self, row: usize) -> String {
        let here = |value: &u32| {
            (ROWS * DOTS_HIGH - 1).checked_sub(self.y(*value)).map(|dot| dot / DOTS_HIGH) == Some(row)
        };
        let text = [self.top, self.top / 2, 0].iter().find(|value| here(value)).map(u32::to_string);
        format!("{:>w$} ", text.unwrap_or_default(), w = MARGIN - 2)
    }

    /// Walks over a line of steps up to `until`: for each column of dots, the lowest and the highest dot.
    fn trace(&self, steps: &[(Duration, u32)], until: Duration, mut dot: impl FnMut(usize, usize, usize)) {
        let places = self.width * DOTS_WIDE;
        let Some(&(_, first)) = steps.first() else { return };
        let mut value = first;
        let mut rest = steps;
        for x in 0..=self.x(until, places) {
            let (mut low, mut high) = (value, value);
            while let Some((&(at, next), later)) = rest.split_first() {
                if at > until || self.x(at, places) > x {
                    break;
                }
                (low, high, value, rest) = (low.min(next), high.max(next), next, later);
            }
            dot(x, self.y(low), self.y(high));
        }
    }

    /// The line that marks when calls were throttled.
    fn throttles(&self, moments: &[Duration]) -> Line {
        let mut marks = vec![' '; self.width];
        for &moment in moments {
            if let Some(mark) = marks.get_mut(self.x(moment, self.width)) {
                *mark = '×';
            }
        }
        vec![
            (format!("{:>w$} ", "429", w = MARGIN - 2), Ink::Plain),
            ("│".to_owned(), Ink::Faint),
            (marks.into_iter().collect(), Ink::Throttle),
        ]
    }

    /// The line that marks when the circuit was open.
    fn open(&self, times: &[(Duration, Duration)]) -> Line {
        let mut marks = vec![' '; self.width];
        for &(from, to) in times {
            let (from, to) = (self.x(from, self.width), self.x(to, self.width));
            marks.iter_mut().take(to + 1).skip(from).for_each(|mark| *mark = '■');
        }
        vec![
            (format!("{:>w$} ", "open", w = MARGIN - 2), Ink::Plain),
            ("│".to_owned(), Ink::Faint),
            (marks.into_iter().collect(), Ink::Throttle),
        ]
    }

    /// The line of moments below the axis: the start, three between, the end.
    fn times(&self) -> String {
        let mut line = " ".repeat(MARGIN);
        for quarter in 0..=4_u32 {
            let text = seconds(self.span * quarter / 4);
            let place = MARGIN + self.width * usize::try_from(quarter).unwrap_or(0) / 4;
            // The last one ends where the plot ends.
            let place = if quarter == 4 { place.saturating_sub(text.len()) } else { place };
            while line.chars().count() < place {
                line.push(' ');
            }
            line.push_str(&text);
        }
        line
    }
}

/// A moment in seconds, with a fraction only where it has one.
fn seconds(moment: Duration) -> String {
    let text = format!("{:.2}", moment.as_secs_f64());
    format!("{}s", text.trim_end_matches('0').trim_end_matches('.'))
}

/// Cells of braille dots, each cell with the ink of the last dot set in it.
struct Canvas {
    width: usize,
    cells: Vec<(u8, Ink)>,
}

impl Canvas {
    fn new(width: usize) -> Self {
        Self { width, cells: vec![(0, Ink::Plain); width * ROWS] }
    }

    /// Sets a dot, counted from the left and from the bottom.
    fn set(&mut self, x: usize, y: usize, ink: Ink) {
        /// The bits of a cell's dots: for each row from its top, left and right.
        const BITS: [[u8; DOTS_WIDE]; DOTS_HIGH] = [[0x01, 0x08], [0x02, 0x10], [0x04, 0x20], [0x40, 0x80]];
        let Some(from_top) = (ROWS * DOTS_HIGH - 1).checked_sub(y) else { return };
        let cell = from_top / DOTS_HIGH * self.width + x / DOTS_WIDE;
        if let Some((dots, colour)) = self.cells.get_mut(cell) {
            *dots |= BITS[from_top % DOTS_HIGH][x % DOTS_WIDE];
            *colour = ink;
        }
    }

    /// A row of cells, with neighbours of one ink joined.
    fn row(&self, row: usize) -> Line {
        let mut line = Line::new();
        for &(dots, ink) in self.cells.iter().skip(row * self.width).take(self.width) {
            let sign = if dots == 0 { ' ' } else { char::from_u32(0x2800 + u32::from(dots)).unwrap_or(' ') };
            match line.last_mut() {
                Some((text, last)) if *last == ink => text.push(sign),
                _ => line.push((sign.to_string(), ink)),
            }
        }
        line
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: Duration = Duration::from_secs(1);

    fn text(scene: &Scene<'_>, columns: usize) -> Vec<String> {
        frame(scene, columns)
            .into_iter()
            .map(|line| line.into_iter().map(|(text, _)| text).collect())
            .collect()
    }

    fn scene<'a>(limits: &'a [(Duration, u32)], ceiling: Option<&'a Schedule>) -> Scene<'a> {
        let (span, now) = (SECOND * 20, SECOND * 10);
        Scene { title: "title", status: "status", span, now, limits, ceiling, throttles: &[], open: None }
    }

    #[test]
    fn a_frame_has_always_the_same_lines_and_fits() {
        let schedule = Schedule::new(20, [(SECOND * 10, 8)]);
        let limits: Vec<_> = (0..2_000).map(|n| (SECOND * n / 100, 1 + n % 1_000)).collect();
        for columns in [0, 10, 40, 80, 200, 1_000] {
            for limits in [&limits[..], &limits[..1], &[]] {
                let lines = text(&scene(limits, Some(&schedule)), columns);
                assert_eq!(lines.len(), ROWS + 6);
                let widest = lines[1..ROWS + 3].iter().map(|line| line.chars().count()).max().unwrap();
                assert!(widest <= columns.max(17), "{columns}: {widest}");
            }
        }
    }

    #[test]
    fn the_limit_goes_as_far_as_the_time_and_the_ceiling_to_the_end() {
        let limits = [(Duration::ZERO, 10)];
        let without = text(&scene(&limits, None), 47);
        let flat: Vec<_> = without[1..=ROWS].iter().filter(|line| line.chars().any(is_dots)).collect();
        assert_eq!(flat.len(), 1, "{without:#?}");
        // Half of the 40 columns, and the dot of the moment itself.
        assert_eq!(flat[0].chars().filter(|&sign| is_dots(sign)).count(), 21);

        let schedule = Schedule::constant(20);
        let with = text(&scene(&limits, Some(&schedule)), 47);
        let row = with[1..=ROWS].iter().position(|line| line.chars().filter(|&s| is_dots(s)).count() == 40);
        assert!(row.is_some_and(|row| row < 4), "{with:#?}");
    }

    #[test]
    fn a_change_is_a_line_upwards() {
        let limits = [(Duration::ZERO, 5), (SECOND * 5, 20)];
        let lines = text(&scene(&limits, None), 47);
        let rows = lines[1..=ROWS].iter().filter(|line| line.chars().any(is_dots)).count();
        assert!(rows >= 7, "{lines:#?}");
    }

    #[test]
    fn a_throttled_call_is_marked_at_its_moment() {
        let mut scene = scene(&[], None);
        let throttles = [Duration::ZERO, SECOND * 10, SECOND * 10, SECOND * 25];
        scene.throttles = &throttles;
        let lines = text(&scene, 47);
        let marks: Vec<_> = lines[ROWS + 1]
            .chars()
            .skip(MARGIN)
            .enumerate()
            .filter(|&(_, s)| s == '×')
            .map(|(x, _)| x)
            .collect();
        assert_eq!(marks, [0, 20, 39]);
    }

    #[test]
    fn moments_are_short() {
        assert_eq!(seconds(Duration::ZERO), "0s");
        assert_eq!(seconds(SECOND * 100), "100s");
        assert_eq!(seconds(SECOND * 15 / 2), "7.5s");
        assert_eq!(seconds(SECOND * 15 / 4), "3.75s");
    }

    fn is_dots(sign: char) -> bool {
        ('\u{2801}'..='\u{28ff}').contains(&sign)
    }
}
