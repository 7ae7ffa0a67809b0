//! Draws the throughput of CPU and GPU as an SVG: bars over batch sizes, on a logarithmic scale.
//! Measures nothing and reads nothing but the report.

use std::fmt::Write as _;

use super::{Case, Report};

const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 420.0;
const LEFT: f64 = 80.0;
const RIGHT: f64 = 20.0;
const TOP: f64 = 70.0;
const BOTTOM: f64 = 60.0;

/// Colours that colour-blind people tell apart, too.
const CPU_COLOUR: &str = "#0072b2";
const GPU_COLOUR: &str = "#d55e00";

pub(super) fn draw(report: &Report) -> String {
    let scale = Scale::over(report.cases.iter().flat_map(speeds));
    let mut svg = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    let title = format!("{}, texts of {} tokens: texts a second by batch size", report.model, report.tokens);
    text(&mut svg, At { x: LEFT, y: 24.0, anchor: "start" }, &title);
    legend(&mut svg, report);
    grid(&mut svg, &scale);
    let slot = (WIDTH - LEFT - RIGHT) / report.cases.len().max(1) as f64;
    for (at, case) in report.cases.iter().enumerate() {
        group(&mut svg, case, LEFT + slot * at as f64, slot, &scale);
    }
    svg.push_str("</svg>\n");
    svg
}

fn speeds(case: &Case) -> impl Iterator<Item = f64> {
    std::iter::once(case.cpu.texts_per_s).chain(case.gpu.map(|gpu| gpu.texts_per_s))
}

/// From speeds to heights: whole powers of ten from the bottom to the top.
struct Scale {
    low: i32,
    high: i32,
}

impl Scale {
    fn over(speeds: impl Iterator<Item = f64>) -> Self {
        let logs: Vec<f64> = speeds.filter(|speed| speed.is_finite() && *speed > 0.0).map(f64::log10).collect();
        let low = logs.iter().copied().fold(f64::INFINITY, f64::min);
        let high = logs.iter().copied().fold(f64::NEG_INFINITY, f64::max);
        if logs.is_empty() {
            return Self { low: 0, high: 1 };
        }
        // The lowest bar has a height, too, where it stands on a power of ten itself.
        let low = (low - 0.05).floor() as i32;
        Self { low, high: (high.ceil() as i32).max(low + 1) }
    }

    /// The distance from the top of the drawing.
    fn y(&self, speed: f64) -> f64 {
        let share = (speed.max(f64::MIN_POSITIVE).log10() - f64::from(self.low)) / f64::from(self.high - self.low);
        TOP + (HEIGHT - TOP - BOTTOM) * (1.0 - share.clamp(0.0, 1.0))
    }
}

struct At {
    x: f64,
    y: f64,
    anchor: &'static str,
}

fn text(svg: &mut String, at: At, words: &str) {
    let At { x, y, anchor } = at;
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{}</text>", escaped(words));
}

fn legend(svg: &mut String, report: &Report) {
    let absent = report.gpu_absent.as_ref().map(|absent| format!("no GPU ({})", absent.code));
    let gpu = report.gpu.as_ref().map(|gpu| gpu.label()).or(absent);
    let mut x = LEFT;
    for (colour, label) in [(CPU_COLOUR, Some(report.cpu.label())), (GPU_COLOUR, gpu)] {
        let Some(label) = label else { continue };
        let _ = writeln!(svg, "<rect x=\"{x:.1}\" y=\"36\" width=\"12\" height=\"12\" fill=\"{colour}\"/>");
        text(svg, At { x: x + 18.0, y: 46.0, anchor: "start" }, &label);
        x += (WIDTH - LEFT - RIGHT) / 2.0;
    }
}

fn grid(svg: &mut String, scale: &Scale) {
    for power in scale.low..=scale.high {
        let y = scale.y(10f64.powi(power));
        let right = WIDTH - RIGHT;
        let _ = writeln!(svg, "<line x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{right}\" y2=\"{y:.1}\" stroke=\"#cccccc\"/>");
        text(svg, At { x: LEFT - 8.0, y: y + 4.0, anchor: "end" }, &shortened(10f64.powi(power)));
    }
}

fn group(svg: &mut String, case: &Case, left: f64, slot: f64, scale: &Scale) {
    let bar = slot * 0.3;
    let floor = HEIGHT - BOTTOM;
    for (at, (speed, colour)) in speeds(case).zip([CPU_COLOUR, GPU_COLOUR]).enumerate() {
        let (x, y) = (left + slot * 0.2 + bar * at as f64, scale.y(speed));
        let height = floor - y;
        let _ = writeln!(
            svg,
            "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{bar:.1}\" height=\"{height:.1}\" fill=\"{colour}\"/>"
        );
        text(svg, At { x: x + bar / 2.0, y: y - 4.0, anchor: "middle" }, &shortened(speed));
    }
    let middle = left + slot / 2.0;
    text(svg, At { x: middle, y: floor + 18.0, anchor: "middle" }, &format!("batch {}", case.batch));
    if let Some(speedup) = case.speedup {
        text(svg, At { x: middle, y: floor + 36.0, anchor: "middle" }, &format!("{speedup:.1} x"));
    }
}

/// A number with three figures at most, as labels have room for.
fn shortened(number: f64) -> String {
    match number {
        n if n >= 1e6 => format!("{}M", three(n / 1e6)),
        n if n >= 1e3 => format!("{}k", three(n / 1e3)),
        n => three(n),
    }
}

fn three(number: f64) -> String {
    let digits = if number >= 99.95 { 0 } else { usize::from(number < 9.995) + 1 };
    let written = format!("{number:.digits$}");
    match written.contains('.') {
        true => written.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => written,
    }
}

fn escaped(words: &str) -> String {
    words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::super::tests::report;
    use super::*;

    fn count(svg: &str, part: &str) -> usize {
        svg.matches(part).count()
    }

    #[test]
    fn a_bar_for_each_measurement() {
        let svg = draw(&report(true));
        // One more of each for the legend.
        assert_eq!((count(&svg, CPU_COLOUR), count(&svg, GPU_COLOUR)), (4, 4));
        assert_eq!(count(&svg, "batch "), 3 + 1, "{svg}");
        assert!(svg.contains(">256.0 x</text>") && svg.contains(">128k</text>"), "{svg}");
        assert!(svg.starts_with("<svg ") && svg.ends_with("</svg>\n"));
    }

    #[test]
    fn without_a_gpu_the_legend_says_why() {
        let svg = draw(&report(false));
        assert_eq!((count(&svg, CPU_COLOUR), count(&svg, GPU_COLOUR)), (4, 1));
        assert!(svg.contains("no GPU (no_driver)"), "{svg}");
    }

    #[test]
    fn names_cannot_break_the_drawing() {
        let svg = draw(&report(true));
        assert!(svg.contains("&lt;tiny&gt; &amp; more") && !svg.contains("<tiny>"), "{svg}");
        assert_eq!(count(&svg, "<text"), count(&svg, "</text>"));
    }

    #[test]
    fn faster_is_higher_and_all_fits() {
        let scale = Scale::over([250.0, 500.0, 128_000.0].into_iter());
        assert_eq!((scale.low, scale.high), (2, 6));
        assert!(scale.y(128_000.0) < scale.y(500.0) && scale.y(500.0) < scale.y(250.0));
        for speed in [250.0, 128_000.0, 0.0, f64::MAX] {
            assert!((TOP..=HEIGHT - BOTTOM).contains(&scale.y(speed)), "{speed}");
        }
        // Nothing and equal speeds have a scale, too.
        let nothing = Scale::over(std::iter::empty());
        let equal = Scale::over([1000.0, 1000.0].into_iter());
        assert!(nothing.high > nothing.low && equal.high > equal.low && equal.y(1000.0) < HEIGHT - BOTTOM);
    }

    #[test]
    fn numbers_are_short() {
        let cases =
            [(250.0, "250"), (5000.0, "5k"), (1234.0, "1.23k"), (12_340.0, "12.3k"), (2.5e6, "2.5M"), (0.5, "0.5")];
        for (number, expected) in cases {
            assert_eq!(shortened(number), expected);
        }
    }
}
