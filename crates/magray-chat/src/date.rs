//! Dates for templates that tell the model what day it is: `strftime` in UTC.
//! Reads no clock; the time is an argument.

use std::fmt::Write;

const MONTHS: [&str; 12] = [
    "January",
    "February",
    "March",
    "April",
    "May",
    "June",
    "July",
    "August",
    "September",
    "October",
    "November",
    "December",
];
const DAYS: [&str; 7] = ["Sunday", "Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday"];
const DAY_S: i64 = 86_400;

/// A moment of the proleptic Gregorian calendar.
struct Moment {
    year: i64,
    /// From 1.
    month: usize,
    /// From 1.
    day: i64,
    /// From 0, which is Sunday.
    weekday: usize,
    /// From 1.
    day_of_year: i64,
    second_of_day: i64,
}

/// Writes a moment by a format of `strftime`. A code that is not known stays as it is.
pub(crate) fn strftime(format: &str, unix_s: i64) -> String {
    let moment = Moment::new(unix_s);
    let mut text = String::new();
    let mut characters = format.chars();
    while let Some(character) = characters.next() {
        if character != '%' {
            text.push(character);
            continue;
        }
        match characters.next() {
            Some('-') => match characters.next() {
                Some(code) => text.push_str(moment.code(code).trim_start_matches(['0', ' '])),
                None => text.push_str("%-"),
            },
            Some(code) => text.push_str(&moment.code(code)),
            None => text.push('%'),
        }
    }
    text
}

impl Moment {
    fn new(unix_s: i64) -> Self {
        let days = unix_s.div_euclid(DAY_S);
        // Years of March to February in eras of 400 years: a leap day is then the last day of its year.
        let shifted = days + 719_468;
        let era = shifted.div_euclid(146_097);
        let day_of_era = shifted.rem_euclid(146_097);
        let year_of_era = (day_of_era - day_of_era / 1_460 + day_of_era / 36_524 - day_of_era / 146_096) / 365;
        let day_from_march = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
        let month_from_march = (5 * day_from_march + 2) / 153;
        let month = if month_from_march < 10 { month_from_march + 3 } else { month_from_march - 9 };
        let year = year_of_era + era * 400 + i64::from(month <= 2);
        let is_leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
        let day_of_year = if month > 2 { day_from_march + 60 + i64::from(is_leap) } else { day_from_march - 305 };
        Self {
            year,
            month: month as usize,
            day: day_from_march - (153 * month_from_march + 2) / 5 + 1,
            weekday: (days + 4).rem_euclid(7) as usize,
            day_of_year,
            second_of_day: unix_s.rem_euclid(DAY_S),
        }
    }

    fn code(&self, code: char) -> String {
        let (hour, minute, second) =
            (self.second_of_day / 3_600, self.second_of_day / 60 % 60, self.second_of_day % 60);
        let (month, weekday) = (MONTHS[self.month - 1], DAYS[self.weekday]);
        let mut text = String::new();
        _ = match code {
            'Y' => write!(text, "{}", self.year),
            'y' => write!(text, "{:02}", self.year.rem_euclid(100)),
            'm' => write!(text, "{:02}", self.month),
            'd' => write!(text, "{:02}", self.day),
            'e' => write!(text, "{:2}", self.day),
            'j' => write!(text, "{:03}", self.day_of_year),
            'B' => write!(text, "{month}"),
            'b' | 'h' => write!(text, "{}", &month[..3]),
            'A' => write!(text, "{weekday}"),
            'a' => write!(text, "{}", &weekday[..3]),
            'H' => write!(text, "{hour:02}"),
            'I' => write!(text, "{:02}", (hour + 11) % 12 + 1),
            'p' => write!(text, "{}", if hour < 12 { "AM" } else { "PM" }),
            'M' => write!(text, "{minute:02}"),
            'S' => write!(text, "{second:02}"),
            'F' => write!(text, "{}-{:02}-{:02}", self.year, self.month, self.day),
            'T' => write!(text, "{hour:02}:{minute:02}:{second:02}"),
            'Z' => write!(text, "UTC"),
            'z' => write!(text, "+0000"),
            '%' => write!(text, "%"),
            other => write!(text, "%{other}"),
        };
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_python() {
        let all = "%a %A %d %b %B %Y %y %m %j %H:%M:%S %I %p %-d %F %%";
        let cases = [
            (0, "Thu Thursday 01 Jan January 1970 70 01 001 00:00:00 12 AM 1 1970-01-01 %"),
            (951_827_696, "Tue Tuesday 29 Feb February 2000 00 02 060 12:34:56 12 PM 29 2000-02-29 %"),
            (1_735_689_599, "Tue Tuesday 31 Dec December 2024 24 12 366 23:59:59 11 PM 31 2024-12-31 %"),
            (-1, "Wed Wednesday 31 Dec December 1969 69 12 365 23:59:59 11 PM 31 1969-12-31 %"),
            (4_102_444_800, "Fri Friday 01 Jan January 2100 00 01 001 00:00:00 12 AM 1 2100-01-01 %"),
        ];
        for (unix_s, text) in cases {
            assert_eq!(strftime(all, unix_s), text);
        }
        assert_eq!(strftime("%Q 100%", 0), "%Q 100%");
    }
}
