//! Dates and times as microseconds since 1970, read from the forms that Qdrant accepts.
//! Knows offsets but no names of time zones; a time without an offset is UTC.

/// Microseconds since 1970-01-01 00:00 UTC.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Instant(pub i64);

impl Instant {
    /// Reads `2024-06-15`, `2024-06-15T12:30`, `2024-06-15 12:30:05.123456+02:00` and the like.
    pub fn parse(text: &str) -> Option<Self> {
        let mut rest = text.trim_start();
        let (year, month, day) = (number(&mut rest, 4)?, tail(&mut rest, b"-", 2)?, tail(&mut rest, b"-", 2)?);
        let mut micros = days_since_1970(year, month, day)? * 86_400_000_000;
        if rest.is_empty() {
            return Some(Self(micros));
        }
        let (hour, minute) = (tail(&mut rest, b"T ", 2)?, tail(&mut rest, b":", 2)?);
        let mut second = 0;
        if rest.starts_with(':') {
            second = tail(&mut rest, b":", 2)?;
            micros += fraction(&mut rest)?;
            micros -= offset(&mut rest)? * 60_000_000;
        }
        if !rest.is_empty() || hour > 23 || minute > 59 || second > 59 {
            return None;
        }
        Some(Self(micros + ((hour * 60 + minute) * 60 + second) * 1_000_000))
    }
}

/// Exactly this number of digits.
fn number(rest: &mut &str, digits: usize) -> Option<i64> {
    let (head, tail) = rest.split_at_checked(digits)?;
    *rest = tail;
    head.bytes().all(|letter| letter.is_ascii_digit()).then(|| head.parse().ok())?
}

/// One of the separators, then digits.
fn tail(rest: &mut &str, separators: &[u8], digits: usize) -> Option<i64> {
    let first = *rest.as_bytes().first()?;
    *rest = separators.contains(&first).then(|| &rest[1..])?;
    number(rest, digits)
}

/// Microseconds after a point; finer digits are cut.
fn fraction(rest: &mut &str) -> Option<i64> {
    let Some(digits) = rest.strip_prefix('.') else {
        return Some(0);
    };
    let length = digits.bytes().take_while(u8::is_ascii_digit).count();
    let (digits, after) = digits.split_at(length);
    *rest = after;
    format!("{:0<6}", &digits[..length.min(6)]).parse().ok().filter(|_| length > 0)
}

/// Minutes east of UTC.
fn offset(rest: &mut &str) -> Option<i64> {
    let text = std::mem::take(rest);
    if matches!(text, "" | "Z" | "z" | " UTC") {
        return Some(0);
    }
    let mut text = text.strip_prefix(' ').unwrap_or(text);
    let sign = if text.starts_with('-') { -1 } else { 1 };
    let hours = tail(&mut text, b"+-", 2)?;
    text = text.strip_prefix(':').unwrap_or(text);
    let minutes = if text.is_empty() { 0 } else { number(&mut text, 2)? };
    (text.is_empty() && hours < 24 && minutes < 60).then_some(sign * (hours * 60 + minutes))
}

/// Days by the Gregorian calendar, counted in eras of 400 years that begin in March.
fn days_since_1970(year: i64, month: i64, day: i64) -> Option<i64> {
    let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let length = match month {
        2 => 28 + i64::from(is_leap),
        4 | 6 | 9 | 11 => 30,
        1..=12 => 31,
        _ => return None,
    };
    if year == 0 || !(1..=length).contains(&day) {
        return None;
    }
    let shifted = year - i64::from(month <= 2);
    let (era, of_era) = (shifted.div_euclid(400), shifted.rem_euclid(400));
    let of_year = (153 * ((month + 9) % 12) + 2) / 5 + day - 1;
    Some(era * 146_097 + of_era * 365 + of_era / 4 - of_era / 100 + of_year - 719_468)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_accepted_forms_mean_the_same_instant() {
        let noon = Instant(1_718_454_600_000_000);
        for text in [
            "2024-06-15T12:30:00Z",
            " 2024-06-15 12:30:00z",
            "2024-06-15T12:30",
            "2024-06-15 12:30:00",
            "2024-06-15T14:30:00+02:00",
            "2024-06-15T14:30:00+0200",
            "2024-06-15T14:30:00 +02",
            "2024-06-15 12:30:00 UTC",
            "2024-06-15T12:30:00.000000999",
        ] {
            assert_eq!(Instant::parse(text), Some(noon), "{text}");
        }
        assert_eq!(Instant::parse("1970-01-01"), Some(Instant(0)));
        assert_eq!(Instant::parse("1969-12-31T23:59:59.5"), Some(Instant(-500_000)));
        assert_eq!(Instant::parse("2000-03-01"), Some(Instant(951_868_800_000_000)));
    }

    #[test]
    fn what_is_no_date_is_none() {
        for text in ["", "2024", "2024-02-30", "2024-06-15 12", "2024-06-15T24:00", "2024-06-15T12:30:00x", "1e3", "ä"]
        {
            assert_eq!(Instant::parse(text), None, "{text}");
        }
    }
}
