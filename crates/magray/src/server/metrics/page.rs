//! Writes values of one moment in Prometheus' text format.
//! Keeps nothing: a value that is not known any more is not shown any more.

use std::fmt::Write;

#[derive(Clone, Copy, Debug)]
pub(super) struct Family {
    pub(super) name: &'static str,
    pub(super) kind: Kind,
    pub(super) help: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    Counter,
    Gauge,
}

pub(super) type Labels<'a> = &'a [(&'static str, &'a str)];

#[derive(Debug, Default)]
pub(super) struct Page {
    text: String,
}

impl Page {
    pub(super) fn after(text: String) -> Self {
        Self { text }
    }

    /// Adds a metric. One without values is not shown: its head comes with the first.
    pub(super) fn add(&mut self, family: Family, write: impl FnOnce(&mut Values<'_>)) {
        write(&mut Values { page: self, family, has_head: false });
    }

    /// Adds a histogram without labels: upper bounds, how many values are in each of their buckets and beyond the last, and the
    /// sum of all.
    pub(super) fn histogram(&mut self, name: &str, help: &str, (bounds, counts): (&[f64], &[u64]), sum: f64) {
        self.write(format_args!("# HELP {name} {help}\n# TYPE {name} histogram\n"));
        let mut all = 0;
        for (at, count) in counts.iter().enumerate() {
            all += count;
            match bounds.get(at) {
                Some(bound) => self.write(format_args!("{name}_bucket{{le=\"{bound}\"}} {all}\n")),
                None => self.write(format_args!("{name}_bucket{{le=\"+Inf\"}} {all}\n")),
            }
        }
        self.write(format_args!("{name}_sum {sum}\n{name}_count {all}\n"));
    }

    pub(super) fn into_text(self) -> String {
        self.text
    }

    fn write(&mut self, text: std::fmt::Arguments<'_>) {
        // Writing to a string cannot fail.
        let _ = self.text.write_fmt(text);
    }
}

pub(super) struct Values<'a> {
    page: &'a mut Page,
    family: Family,
    has_head: bool,
}

impl Values<'_> {
    pub(super) fn add(&mut self, labels: Labels<'_>, value: Option<f64>) {
        let Some(number) = value else { return };
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
        self.page.write(format_args!("{after} {number}\n"));
    }

    /// Adds a value for each state: 1 for the current one, 0 for the others.
    pub(super) fn add_state(&mut self, labels: Labels<'_>, states: &[&str], now: &str) {
        for state in states {
            let all: Vec<_> = labels.iter().copied().chain([("state", *state)]).collect();
            self.add(&all, Some(if *state == now { 1.0 } else { 0.0 }));
        }
    }
}

fn escaped(value: &str) -> String {
    value.replace('\\', r"\\").replace('"', "\\\"").replace('\n', r"\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const FAMILY: Family = Family { name: "magray_x_bytes", kind: Kind::Gauge, help: "What x is." };

    #[test]
    fn a_metric_has_one_head_and_a_line_for_each_value() {
        let mut page = Page::after("before 1\n".to_owned());
        page.add(FAMILY, |values| {
            values.add(&[("device", "cpu"), ("model", "a\"b\\c\nd")], Some(1.5));
            values.add(&[("device", "cuda:0")], None);
            values.add(&[], Some(7e9));
        });
        assert_eq!(
            page.into_text(),
            "before 1\n# HELP magray_x_bytes What x is.\n# TYPE magray_x_bytes gauge\n\
             magray_x_bytes{device=\"cpu\",model=\"a\\\"b\\\\c\\nd\"} 1.5\nmagray_x_bytes 7000000000\n"
        );
    }

    #[test]
    fn a_metric_without_values_is_not_shown() {
        let mut page = Page::default();
        page.add(FAMILY, |values| values.add(&[], None));
        assert_eq!(page.into_text(), "");
    }

    #[test]
    fn the_current_state_is_1_and_the_others_are_0() {
        let mut page = Page::default();
        page.add(FAMILY, |values| values.add_state(&[("device", "cpu")], &["up", "out"], "out"));
        let text = page.into_text();
        assert!(text.contains("{device=\"cpu\",state=\"up\"} 0\n") && text.contains("state=\"out\"} 1\n"), "{text}");
    }
}
