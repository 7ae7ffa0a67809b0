//! Sizes, times and pairs of a name and a value as people read them.
//! Rounds: programs get the figures themselves.

/// Lines of a name and a value.
pub(super) type Rows = Vec<Vec<String>>;

pub(super) fn push(rows: &mut Rows, name: &str, value: impl Into<String>) {
    rows.push(vec![name.to_owned(), value.into()]);
}

pub(in crate::commands) fn size(bytes: u64) -> String {
    const UNITS: [(&str, f64); 3] = [("GB", 1e9), ("MB", 1e6), ("kB", 1e3)];
    let unit = UNITS.iter().find(|(_, unit)| bytes as f64 >= *unit);
    unit.map_or_else(|| format!("{bytes} B"), |(name, unit)| format!("{:.1} {name}", bytes as f64 / unit))
}

pub(in crate::commands) fn span(seconds: f64) -> String {
    let whole = seconds as u64;
    match whole {
        _ if seconds < 0.1 => format!("{:.1} ms", seconds * 1e3),
        _ if seconds < 10.0 => format!("{seconds:.2} s"),
        0..120 => format!("{whole} s"),
        120..7200 => format!("{} min", whole / 60),
        _ => format!("{} h {} min", whole / 3600, whole % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_and_times_have_the_unit_that_suits_them() {
        let sizes = [0, 999, 1500, 45_000_000, 143_700_000_000].map(size);
        assert_eq!(sizes, ["0 B", "999 B", "1.5 kB", "45.0 MB", "143.7 GB"]);
        let spans = [0.0, 0.0123, 0.5, 59.9, 119.0, 121.0, 7260.0].map(span);
        assert_eq!(spans, ["0.0 ms", "12.3 ms", "0.50 s", "59 s", "119 s", "2 min", "2 h 1 min"]);
    }
}
