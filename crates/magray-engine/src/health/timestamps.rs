//! What health has to say to people: times as dates, the name of this machine.
//! Decides nothing and never fails.

use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// A time as people and programs read it, such as `2026-03-01T12:00:05Z`.
pub fn utc(time: SystemTime) -> String {
    utc_of(time.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs()))
}

/// The same, of seconds since 1970.
pub fn utc_of(unix_s: u64) -> String {
    let (days, second) = (unix_s / 86_400, unix_s % 86_400);
    let (year, month, day) = date(days);
    let (hour, minute, second) = (second / 3600, second / 60 % 60, second % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

/// Year, month and day, from 1 on, of a day counted from 1970.
fn date(days: u64) -> (u64, u64, u64) {
    // Years begin in March here, so that the leap day is the last of a year; day 719468 of year 0 is 1970-01-01.
    let days = days.saturating_add(719_468);
    let (era, day) = (days / 146_097, days % 146_097);
    let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let (day, month) = (day - (153 * month + 2) / 5 + 1, if month < 10 { month + 3 } else { month - 9 });
    (era * 400 + year + u64::from(month <= 2), month, day)
}

/// What this machine is called; `unknown` where the system does not tell.
pub fn host_name() -> String {
    let told = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    if told.trim().is_empty() { "unknown".to_owned() } else { told.trim().to_owned() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Duration;

    #[test]
    fn times_are_dates() {
        for (unix_s, expected) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_782_399, "2000-02-28T23:59:59Z"),
            (951_782_400, "2000-02-29T00:00:00Z"),
            (1_709_251_199, "2024-02-29T23:59:59Z"),
            (1_709_251_200, "2024-03-01T00:00:00Z"),
            (1_767_225_599, "2025-12-31T23:59:59Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
        ] {
            assert_eq!(utc(UNIX_EPOCH + Duration::from_secs(unix_s)), expected);
        }
        assert_eq!(utc(UNIX_EPOCH - Duration::from_secs(9)), "1970-01-01T00:00:00Z", "a clock that is not set");
    }

    #[test]
    fn the_days_of_a_calendar_follow_each_other() {
        let mut before = date(0);
        for days in 1..200_000 {
            let day = date(days);
            let is_next = day == (before.0, before.1, before.2 + 1)
                || day == (before.0, before.1 + 1, 1)
                || day == (before.0 + 1, 1, 1);
            assert!(is_next && day.1 <= 12 && day.2 <= 31, "{before:?} {day:?}");
            before = day;
        }
    }
}
