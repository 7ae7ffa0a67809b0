//! Writes figures of one moment in Prometheus' text format.
//! Remembers nothing: what is not told of any more is not shown any more.

use std::fmt::Write;

/// What Prometheus is told of a metric beside its figures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
}

/// Whether a figure only grows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

/// Names of labels with their values.
pub(super) type Labels<'a> = &'a [(&'static str, &'a str)];

/// What is written so far.
#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
}

impl Page {
    /// Goes on after what is written already.
    pub(super) fn after(text: String) -> Self {
        Self { text }
    }

    /// A metric. One that has no figures is not shown: its head comes with the first.
    pub(super) fn add(&mut self, family: Family, figures: impl FnOnce(&mut Figures<'_>)) {
        figures(&mut Figures { page: self, family, has_head: false });
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        // A string takes all that it is given.
        let _ = self.text.write_fmt(text);
    }
}

/// The figures of a metric.
pub(super) struct Figures<'a> {
    page: &'a mut Page,
    family: Family,
    has_head: bool,
}

impl Figures<'_> {
    /// A figure; one that is not known is left out.
    pub(super) fn tell(&mut self, labels: Labels<'_>, figure: Option<f64>) {
        let Some(figure) = figure else { return };
        let Family { name, kind, help } = self.family;
        if !std::mem::replace(&mut self.has_head, true) {
            let kind = if kind == Kind::Counter { "counter" } else { "gauge" };
            self.page.write(format_args!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
        }
        self.page.write(format_args!("{name}"));
        for (at, (label, value)) in labels.iter().enumerate() {
            let before = if at == 0 { '{' } else { ',' };
            self.page.write(format_args!("{before}{label}=\"{}\"", escaped(value)));
        }
        let after = if labels.is_empty() { "" } else { "}" };
        self.page.write(format_args!("{after} {figure}\n"));
    }

    /// One figure for each of these states: 1 for the one that is so, 0 for the others.
    pub(super) fn tell_state(&mut self, labels: Labels<'_>, states: &[&str], now: &str) {
        for state in states {
            let all: Vec<_> = labels.iter().copied().chain([("state", *state)]).collect();
            self.tell(&all, Some(if *state == now { 1.0 } else { 0.0 }));
        }
    }
}

/// A label's value: names of models are whatever their folders are called.
fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILY: Family = Family { name: "magray_x_bytes", kind: Kind::Gauge, help: "What x is." };

    #[test]
    fn a_metric_has_one_head_and_a_line_for_each_figure() {
        let mut page = Page::after("before 1\n".to_owned());
        page.add(FAMILY, |figures| {
            figures.tell(&[("device", "cpu"), ("model", "a\"b\\c\nd")], Some(1.5));
            figures.tell(&[("device", "cuda:0")], None);
            figures.tell(&[], Some(7e9));
        });
        assert_eq!(
            page.into_text(),
            "before 1\n# HELP magray_x_bytes What x is.\n# TYPE magray_x_bytes gauge\n\
             magray_x_bytes{device=\"cpu\",model=\"a\\\"b\\\\c\\nd\"} 1.5\nmagray_x_bytes 7000000000\n"
        );
    }

    #[test]
    fn what_has_no_figure_is_not_shown() {
        let mut page = Page::default();
        page.add(FAMILY, |figures| figures.tell(&[], None));
        assert_eq!(page.into_text(), "");
    }

    #[test]
    fn one_state_is_so_and_the_others_are_not() {
        let mut page = Page::default();
        page.add(FAMILY, |figures| figures.tell_state(&[("device", "cpu")], &["up", "out"], "out"));
        let text = page.into_text();
        assert!(text.contains("{device=\"cpu\",state=\"up\"} 0\n") && text.contains("state=\"out\"} 1\n"), "{text}");
    }
}
