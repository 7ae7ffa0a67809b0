//! What was found, as lines of JSON and as tables.
//! Measures nothing.

use magray_core::pool::PoolStats;
use serde::Serialize;
use serde_json::json;

use crate::terminal::aligned;

/// The times of one case; the names are those of `--json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Pairs {
    pub(super) case: String,
    pub(super) pairs: usize,
    pub(super) p50_ns: u64,
    pub(super) p99_ns: u64,
    pub(super) mean_ns: f64,
    pub(super) driver_calls: u64,
}

impl Pairs {
    /// Sums up times; there must be one at least.
    pub(super) fn of(case: String, mut times: Vec<u64>, driver_calls: u64) -> Self {
        assert!(!times.is_empty(), "nothing was measured");
        times.sort_unstable();
        let at = |percent: usize| times[(times.len() - 1) * percent / 100];
        let mean_ns = times.iter().map(|time| *time as f64).sum::<f64>() / times.len() as f64;
        Self { case, pairs: times.len(), p50_ns: at(50), p99_ns: at(99), mean_ns, driver_calls }
    }
}

/// The memory of one case; the names are those of `--json`.
#[derive(Clone, Debug, Serialize)]
pub(super) struct Waste {
    pub(super) case: String,
    pub(super) peak_used_bytes: u64,
    pub(super) peak_reserved_bytes: u64,
    pub(super) wasted: f64,
    pub(super) allocations: u64,
    pub(super) driver_calls: u64,
    pub(super) stitches: u64,
}

impl Waste {
    pub(super) fn of(case: String, stats: &PoolStats) -> Self {
        Self {
            case,
            peak_used_bytes: stats.peak_used,
            peak_reserved_bytes: stats.peak_reserved,
            wasted: stats.fragmentation(),
            allocations: stats.hits + stats.misses,
            driver_calls: stats.driver_calls,
            stitches: stats.stitches,
        }
    }
}

#[derive(Debug)]
pub(super) struct Report {
    device: String,
    clock_ns: u64,
    pairs: Vec<Pairs>,
    waste: Vec<Waste>,
}

impl Report {
    pub(super) fn new(device: String, clock_ns: u64) -> Self {
        Self { device, clock_ns, pairs: Vec::new(), waste: Vec::new() }
    }

    /// The line of `--json` that says where the others were measured.
    pub(super) fn head_json(&self) -> String {
        json!({ "device": self.device, "clock_ns": self.clock_ns }).to_string()
    }

    /// Adds a case; returns its line of `--json`.
    pub(super) fn add_pairs(&mut self, pairs: Pairs) -> String {
        let line = json!(pairs).to_string();
        self.pairs.push(pairs);
        line
    }

    /// Adds a case; returns its line of `--json`.
    pub(super) fn add_waste(&mut self, waste: Waste) -> String {
        let line = json!(waste).to_string();
        self.waste.push(waste);
        line
    }

    pub(super) fn tables(&self) -> String {
        let mut text = format!("{}; reading the clock takes {} ns of each time\n", self.device, self.clock_ns);
        if !self.pairs.is_empty() {
            let head = ["allocate + free", "pairs", "p50 ns", "p99 ns", "mean ns", "driver calls"];
            let rows = self.pairs.iter().map(|case| {
                vec![
                    case.case.clone(),
                    case.pairs.to_string(),
                    case.p50_ns.to_string(),
                    case.p99_ns.to_string(),
                    format!("{:.1}", case.mean_ns),
                    case.driver_calls.to_string(),
                ]
            });
            text += &format!("\n{}", table(&head, rows));
        }
        if !self.waste.is_empty() {
            let head = ["memory", "allocations", "peak used MiB", "peak reserved MiB", "wasted", "driver calls"];
            let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
            let rows = self.waste.iter().map(|case| {
                vec![
                    case.case.clone(),
                    case.allocations.to_string(),
                    mib(case.peak_used_bytes),
                    mib(case.peak_reserved_bytes),
                    format!("{:.2} %", case.wasted * 100.0),
                    case.driver_calls.to_string(),
                ]
            });
            text += &format!("\n{}", table(&head, rows));
        }
        text
    }
}

/// A size in the largest unit of which it is a whole number.
pub(super) fn size_name(bytes: u64) -> String {
    match bytes {
        _ if bytes.is_multiple_of(1 << 20) => format!("{} MiB", bytes >> 20),
        _ if bytes.is_multiple_of(1 << 10) => format!("{} KiB", bytes >> 10),
        _ => format!("{bytes} bytes"),
    }
}

fn table(head: &[&str], rows: impl Iterator<Item = Vec<String>>) -> String {
    let head = head.iter().map(|name| (*name).to_owned()).collect();
    aligned(&std::iter::once(head).chain(rows).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use expect_test::expect;

    #[test]
    fn percentiles_lie_where_they_should() {
        let pairs = Pairs::of("x".to_owned(), (1..=101).rev().collect(), 7);
        assert_eq!((pairs.pairs, pairs.p50_ns, pairs.p99_ns, pairs.driver_calls), (101, 51, 100, 7));
        assert!((pairs.mean_ns - 51.0).abs() < 1e-9);
    }

    #[test]
    fn the_tables_line_up() {
        let mut report = Report::new("simulated".to_owned(), 20);
        report.add_pairs(Pairs::of(size_name(64 << 10), vec![100, 100, 110], 0));
        let stats = PoolStats {
            peak_used: 95 << 20,
            peak_reserved: 100 << 20,
            hits: 9,
            misses: 1,
            driver_calls: 4,
            ..PoolStats::default()
        };
        report.add_waste(Waste::of("survivors that stay".to_owned(), &stats));
        expect![[r#"
            simulated; reading the clock takes 20 ns of each time

            allocate + free  pairs  p50 ns  p99 ns  mean ns  driver calls
            64 KiB           3      100     100     103.3    0

            memory               allocations  peak used MiB  peak reserved MiB  wasted  driver calls
            survivors that stay  10           95.0           100.0              5.00 %  4
        "#]]
        .assert_eq(&report.tables());
    }
}
