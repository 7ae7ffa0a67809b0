//! Writes a number with nine significant digits, which every f32 needs at most to be read back as itself.
//! Writes nothing else.

use std::io::{self, Write};

const DIGITS: usize = 9;
/// Powers of ten that an f64 holds exactly.
const POWERS: [f64; 14] = [1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13];
/// Without an exponent are written numbers from 10 to this power ...
const LOWEST: i32 = -5;
/// ... up to, but not including, 10 to this one.
const HIGHEST: i32 = DIGITS as i32;

/// Writes a finite number; zeros at the end are left out, but for one after the point.
pub(super) fn write(out: &mut (impl Write + ?Sized), number: f32) -> io::Result<()> {
    let size = f64::from(number.abs());
    if number == 0.0 || !(1e-5..1e9).contains(&size) {
        return write_rare(out, number);
    }
    let power = (LOWEST..HIGHEST).rev().find(|power| size >= ten_to(*power)).unwrap_or(LOWEST);
    let scaled = (size * POWERS[(HIGHEST - 1 - power) as usize]).round_ties_even() as u64;
    // Rounding may reach the next power of ten.
    let (scaled, power) = if scaled == 1_000_000_000 { (scaled / 10, power + 1) } else { (scaled, power) };
    let mut digits = [b'0'; DIGITS];
    let mut rest = scaled;
    for digit in digits.iter_mut().rev() {
        *digit = b'0' + (rest % 10) as u8;
        rest /= 10;
    }
    if number < 0.0 {
        out.write_all(b"-")?;
    }
    let whole = (power + 1).max(0) as usize;
    let (before, after) = digits.split_at(whole);
    let kept = after.iter().rposition(|digit| *digit != b'0').map_or(0, |last| last + 1);
    out.write_all(if before.is_empty() { b"0" } else { before })?;
    out.write_all(b".")?;
    out.write_all(&b"0000"[..(-power - 1).max(0) as usize])?;
    out.write_all(if kept == 0 { b"0" } else { &after[..kept] })
}

fn ten_to(power: i32) -> f64 {
    match usize::try_from(power) {
        Ok(power) => POWERS[power],
        Err(_) => 1.0 / POWERS[power.unsigned_abs() as usize],
    }
}

fn write_rare(out: &mut (impl Write + ?Sized), number: f32) -> io::Result<()> {
    if number == 0.0 {
        return out.write_all(if number.is_sign_negative() { b"-0.0" } else { b"0.0" });
    }
    let spelled = format!("{number:.8e}");
    match spelled.split_once('e') {
        Some((mantissa, exponent)) => {
            let mantissa = mantissa.trim_end_matches('0').trim_end_matches('.');
            write!(out, "{mantissa}e{exponent}")
        }
        None => out.write_all(spelled.as_bytes()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn written(number: f32) -> String {
        let mut bytes = Vec::new();
        write(&mut bytes, number).unwrap();
        String::from_utf8(bytes).unwrap()
    }

    #[test]
    fn nine_digits_without_needless_zeros() {
        for (number, text) in [
            (0.5, "0.5"),
            (-0.25, "-0.25"),
            (3.0, "3.0"),
            (0.0, "0.0"),
            (0.1, "0.100000001"),
            (-0.033_914_11, "-0.0339141116"),
            (1e-7, "1.00000001e-7"),
            (1e-5, "9.99999975e-6"),
            (12_345.678, "12345.6777"),
            (16_777_216.0, "16777216.0"),
            (1e9, "1e9"),
            (3.4e38, "3.39999995e38"),
        ] {
            assert_eq!(written(number), text);
        }
    }

    proptest! {
        #[test]
        fn every_number_reads_back_as_itself(bits: u32, ordinary in -2.0f32..2.0) {
            for number in [f32::from_bits(bits), ordinary].into_iter().filter(|number| number.is_finite()) {
                let text = written(number);
                prop_assert_eq!(text.parse::<f32>().unwrap().to_bits(), number.to_bits(), "{}", &text);
                prop_assert!(serde_json::from_str::<f64>(&text).is_ok(), "{}", text);
            }
        }
    }
}
