//! Draws lines over loads as an SVG: one small chart beside the other, on a logarithmic scale.
//! Measures nothing.

use std::fmt::Write as _;

const PANEL: (f64, f64) = (300.0, 220.0);
const LEFT: f64 = 60.0;
const TOP: f64 = 70.0;
const GAP: (f64, f64) = (30.0, 60.0);

pub(super) struct Panel {
    pub(super) title: String,
    pub(super) lines: Vec<Line>,
}

pub(super) struct Line {
    pub(super) name: &'static str,
    /// Colours that colour-blind people tell apart, too.
    pub(super) colour: &'static str,
    pub(super) points: Vec<(f64, f64)>,
}

/// Titles and labels around the charts.
pub(super) struct Frame {
    pub(super) title: &'static str,
    pub(super) x: &'static str,
    pub(super) columns: usize,
    /// Labels below the points of a line, from left to right.
    pub(super) ticks: Vec<String>,
}

pub(super) fn draw(frame: &Frame, panels: &[Panel]) -> String {
    let rows = panels.len().div_ceil(frame.columns.max(1));
    let width = LEFT + frame.columns as f64 * (PANEL.0 + GAP.0 + LEFT);
    let height = TOP + rows as f64 * (PANEL.1 + GAP.1) + 20.0;
    let mut svg = String::new();
    // Writing to a String cannot fail.
    let _ = write!(
        svg,
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"100%\" height=\"100%\" fill=\"white\"/>\n"
    );
    text(&mut svg, At { x: LEFT, y: 24.0, anchor: "start" }, frame.title);
    legend(&mut svg, panels);
    for (at, panel) in panels.iter().enumerate() {
        let x = LEFT + (at % frame.columns) as f64 * (PANEL.0 + GAP.0 + LEFT);
        let y = TOP + (at / frame.columns) as f64 * (PANEL.1 + GAP.1);
        chart(&mut svg, panel, (x, y), frame);
    }
    svg.push_str("</svg>\n");
    svg
}

struct At {
    x: f64,
    y: f64,
    anchor: &'static str,
}

fn text(svg: &mut String, at: At, words: &str) {
    let At { x, y, anchor } = at;
    let words = words.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;");
    let _ = writeln!(svg, "<text x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\">{words}</text>");
}

fn legend(svg: &mut String, panels: &[Panel]) {
    let Some(panel) = panels.first() else { return };
    for (at, line) in panel.lines.iter().enumerate() {
        let x = LEFT + at as f64 * 140.0;
        let _ = writeln!(svg, "<rect x=\"{x:.1}\" y=\"36\" width=\"12\" height=\"12\" fill=\"{}\"/>", line.colour);
        text(svg, At { x: x + 18.0, y: 46.0, anchor: "start" }, line.name);
    }
}

fn chart(svg: &mut String, panel: &Panel, corner: (f64, f64), frame: &Frame) {
    let (left, top) = corner;
    let points = || panel.lines.iter().flat_map(|line| line.points.iter().copied());
    let low_x = points().map(|point| point.0).fold(f64::INFINITY, f64::min);
    let high_x = points().map(|point| point.0).fold(f64::NEG_INFINITY, f64::max);
    let logs = || points().map(|point| point.1.max(1e-6).log10());
    let low = logs().fold(f64::INFINITY, f64::min).floor();
    let high = logs().fold(f64::NEG_INFINITY, f64::max).ceil().max(low + 1.0);
    let x = |value: f64| left + PANEL.0 * (value - low_x) / (high_x - low_x).max(f64::MIN_POSITIVE);
    let y = |value: f64| top + PANEL.1 * (1.0 - (value.max(1e-6).log10() - low) / (high - low));
    text(svg, At { x: left, y: top - 8.0, anchor: "start" }, &panel.title);
    for power in low as i32..=high as i32 {
        let at = y(10f64.powi(power));
        let right = left + PANEL.0;
        let _ = writeln!(
            svg,
            "<line x1=\"{left:.1}\" y1=\"{at:.1}\" x2=\"{right:.1}\" y2=\"{at:.1}\" stroke=\"#cccccc\"/>"
        );
        text(svg, At { x: left - 6.0, y: at + 4.0, anchor: "end" }, &format!("{}", 10f64.powi(power)));
    }
    let floor = top + PANEL.1;
    let places = panel.lines.first().map(|line| line.points.as_slice()).unwrap_or_default();
    for ((value, _), tick) in places.iter().zip(&frame.ticks) {
        text(svg, At { x: x(*value), y: floor + 16.0, anchor: "middle" }, tick);
    }
    text(svg, At { x: left + PANEL.0 / 2.0, y: floor + 32.0, anchor: "middle" }, frame.x);
    for line in &panel.lines {
        let path: Vec<String> = line.points.iter().map(|(px, py)| format!("{:.1},{:.1}", x(*px), y(*py))).collect();
        let colour = line.colour;
        let _ = writeln!(
            svg,
            "<polyline points=\"{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>",
            path.join(" ")
        );
        for (px, py) in &line.points {
            let _ = writeln!(svg, "<circle cx=\"{:.1}\" cy=\"{:.1}\" r=\"3\" fill=\"{colour}\"/>", x(*px), y(*py));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_point_is_drawn_within_its_chart() {
        let line = |colour, points: &[(f64, f64)]| Line { name: "a & b", colour, points: points.to_vec() };
        let panel = |title: &str| Panel {
            title: title.to_owned(),
            lines: vec![line("#111111", &[(30.0, 0.0), (50.0, 10.0)]), line("#222222", &[(30.0, 5.0), (50.0, 5000.0)])],
        };
        let frame = Frame { title: "waiting", x: "load, %", columns: 2, ticks: vec!["30".to_owned(), "50".to_owned()] };
        let svg = draw(&frame, &[panel("1:2"), panel("1:4"), panel("1 < 10")]);
        assert_eq!(svg.matches("<circle").count(), 12);
        assert_eq!(svg.matches("<polyline").count(), 6);
        assert!(svg.contains("1 &lt; 10") && svg.contains("a &amp; b") && !svg.contains("NaN") && !svg.contains("inf"));
        assert_eq!(svg.matches("<text").count(), svg.matches("</text>").count());
    }
}
